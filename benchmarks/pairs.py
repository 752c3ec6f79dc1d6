"""Alternating measurements of several ways to do the same, and the report of median and spread."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.machine import Conditions, summary

Figures = dict[str, float]


def parser_of(text: str | None, num_rounds: int = 7) -> ArgumentParser:
    """Return a parser with --rounds and --json; `text` is the docstring of the script."""
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=num_rounds)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


def in_turns(ways: Mapping[str, Callable[[], Figures]], num_rounds: int) -> dict[str, list[Figures]]:
    """Measure each way once per round, in a rotating order. Return the figures of each round, by way."""
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(num_rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(ways[name]())
            print(f"round {number + 1}: {name} {found[name][-1]}", file=sys.stderr, flush=True)
    return found


def column(rounds: Sequence[Figures], name: str) -> list[float]:
    """Return one figure of every round."""
    return [figures[name] for figures in rounds]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratio of each round; other load on the machine affects both values."""
    return [one / other for one, other in zip(above, below, strict=True)]


def tell(found: Mapping[str, Sequence[float]], conditions: Conditions, path: Path | None) -> None:
    """Print each figure's median and spread as a Markdown table, and write them as JSON."""
    summaries = {name: summary(values) for name, values in found.items()}
    print("| | median | smallest | largest |\n|---|---|---|---|")
    for name, values in summaries.items():
        print(f"| {name} | {values['median']:,} | {values['min']:,} | {values['max']:,} |")
    if path is not None:
        path.write_text(json.dumps({**summaries, **conditions.report()}, indent=2) + "\n")
