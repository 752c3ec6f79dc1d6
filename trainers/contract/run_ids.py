"""What runs are called: the names their folders may have, and the next one."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.config import Config

RUN_ID_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Numbering:
    """How new runs are numbered where people do not see each other's.

    A number among all runs would tell how many there are that its reader may not know of. So only those
    count that the current user may see, and the ids of two people differ by what stands behind the number.
    """

    suffix: str
    may_see: Callable[[Path], bool]


def next_run_id(runs_dir: Path, config: Config, numbering: Numbering | None = None) -> str:
    """Return the id the next run with this configuration gets: its name, or data set and model, numbered."""
    return next(next_run_ids(runs_dir, config, numbering))


def next_run_ids(runs_dir: Path, config: Config, numbering: Numbering | None) -> Iterator[str]:
    """Yield the next id, and those after it: somebody else may be quicker."""
    stem = _slug(config.name) or _slug(f"{config.dataset}-{config.model}") or "run"
    suffix = f"-{numbering.suffix}" if numbering else ""
    taken = re.compile(rf"{re.escape(stem)}-(\d{{1,9}})(?:{re.escape(suffix)})?")
    try:
        names = os.listdir(runs_dir)
    except FileNotFoundError:
        names = []
    numbers = [
        int(match[1])
        for match in map(taken.fullmatch, names)
        if match and (numbering is None or numbering.may_see(runs_dir / match[0]))
    ]
    return (f"{stem}-{number}{suffix}" for number in itertools.count(max(numbers, default=0) + 1))


def _slug(text: str) -> str:
    """Return a text as part of a folder's name: nothing in it can lead out of the runs directory."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower())[:40].strip("-_")
