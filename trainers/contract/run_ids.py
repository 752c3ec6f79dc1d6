"""Run ids: which folder names are valid, and the id of the next run."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from trainers.contract.config import Config

MAX_BYTES = 240  # a file name has at most 255; the bin and copies append to it
# "/" and "\\" separate folders, "," separates ids in an address, "~" the number of a run in the bin.
_RESERVED = frozenset("/\\,~")
_OUTSIDE_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class Numbering:
    """How new runs are numbered where people do not see each other's.

    A number among all runs would tell how many there are that its reader may not know of. So only those
    count that the current user may see, and the ids of two people differ by what stands behind the number.
    """

    suffix: str
    may_see: Callable[[Path], bool]


def is_shown(text: str) -> bool:
    """True if each character of a text can be seen or is a space: no control characters, no lone surrogates.

    Unlike `str.isprintable` the spaces of other scripts are allowed, such as the ideographic one.
    """
    return all(char.isprintable() or unicodedata.category(char) == "Zs" for char in text)


def is_run_id(name: object) -> TypeGuard[str]:
    """True if a folder of this name can be a run.

    New runs get ids of `[a-z0-9_-]`; a folder that was renamed or copied may have almost any name. Excluded
    are hidden names, names that look like an option, and characters that separate ids or cannot be seen.
    """
    return (
        isinstance(name, str)
        and is_shown(name)
        and 0 < len(name.encode()) <= MAX_BYTES
        and name[0] not in ".-"
        and name == name.strip()
        and _RESERVED.isdisjoint(name)
    )


def require_run_id(name: str) -> None:
    """Raise ValueError if a folder of this name cannot be a run."""
    if not is_run_id(name):
        raise ValueError(
            "The name of its folder is longer than 240 bytes, begins with '-', or contains a character that "
            r"a run id cannot have (',', '~', '\', invisible characters, bytes that are not UTF-8). "
            "Rename the folder."
        )


def file_stem(run_id: str) -> str:
    """Return a run id as the beginning of a file name that every system and HTTP header accepts."""
    return _OUTSIDE_FILE_NAMES.sub("-", run_id)[:100].strip("-.") or "run"


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
