"""The README's table of figures, from the results of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.cases import CASES, COMPARED_WITH_ALL

Figures = dict[str, Any]


class Spread(dict[str, float]):
    """A median with minimum and maximum, formatted by `{name:2 ms}`: digits and unit."""

    def __format__(self, digits_and_unit: str) -> str:
        """Format the median, and the spread in parentheses."""
        digits, _, unit = digits_and_unit.partition(" ")
        low, middle, high = (f"{self[name]:,.{digits}f}" for name in ("min", "median", "max"))
        return f"{middle}{unit and f' {unit}'} ({low}–{high})"


def written(template: str) -> Callable[[Figures], str]:
    """Return a function that inserts figures into a template."""

    def fill(found: Figures) -> str:
        is_spread = {name: isinstance(value, dict) and "median" in value for name, value in found.items()}
        return template.format_map(
            {name: Spread(value) if is_spread[name] else value for name, value in found.items()}
        )

    return fill


def case(name: str) -> Callable[[Figures], str]:
    """Return a function that formats a model's ratios to each of its rivals."""
    return lambda found: " / ".join(
        f"{Spread(ratio):2 ×}" for ratio in found["cases"][name]["ratio_to"].values()
    )


def other_models(found: Figures) -> str:
    """Format each further model's ratio to the bare script."""
    return ", ".join(
        f"`{name}` {of['ratio_to']['bare']['median']:.2f}" for name, of in found["cases"].items()
    )


def losses_apart(found: Figures) -> str:
    """Format the largest difference from the bare script's losses."""
    apart = [of["loss_differences_from_bare"] for of in found["cases"].values()]
    return f"{max(each['largest_of_the_first_steps'] for each in apart):.1e}"


STEPS = "steps a second, two CPU ranks, watched in a browser on the same two cores"
# Description, script with the figures, and formatter.
ROWS: list[tuple[str, str, Callable[[Figures], str]]] = [
    *(
        (f"`{name}`: {STEPS}, against a bare DDP script / Accelerate / Lightning", "compare", case(name))
        for name in CASES
        if name in COMPARED_WITH_ALL
    ),
    ("… the other models against the bare script, ×", "compare-others", other_models),
    ("… largest difference of a loss among the first 100 steps", "compare", losses_apart),
    (
        "Click on Start to the first point: with / without a warm pool; bare `torchrun` to its first step",
        "startup",
        written("{standing by:2 s} / {cold:2 s}; {bare torchrun:2 s}"),
    ),
    (
        "… against bare `torchrun`: with / without a warm pool",
        "startup",
        written("{ratio of standing by:2 ×} / {ratio of cold:2 ×}"),
    ),
    ("Five viewers and all that is measured, against neither", "watching", written("{ratio:3 ×}")),
    ("A checkpoint of 10 million weights pauses training for", "saving", written("{stall_ms:1 ms}")),
    ("… written, against the disk's own speed", "saving", written("{saved_against_disk:2 ×}")),
    (
        "A folder of images while it is prepared / once it is, against decoding alone",
        "loading",
        written("{preparing_against_decoder:2 ×} / {prepared_against_decoder:1 ×}"),
    ),
]


def table(held: dict[str, Any]) -> str:
    """Return the table as Markdown, without rows that were not measured."""
    lines = ["| | median (smallest–largest) | script, day |", "|---|---|---|"]
    for words, script, write in ROWS:
        if script in held:
            figures, day = held[script]["figures"], held[script]["measured"]
            lines.append(f"| {words} | {write(figures)} | {script}, {day} |")
    return "\n".join(lines)
