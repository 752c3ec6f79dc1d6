"""A person's own data: looked at in a short-lived process, so that the page holds none of it."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_gui import look_process
from ddp_gui.catalogue import Catalogue, Dataset
from ddp_gui.look_process import LookError
from trainers.contract.config import Config, ConfigError, Problem

MAX_PROBLEMS_TOLD = 5
MAX_REMEMBERED = 64
MAX_FOLDERS_WATCHED = 1000
MAX_ENTRIES_SEEN = 10_000

__all__ = ["Look", "LookError", "OwnData", "problem_in_words"]

_Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What `python -m trainers.inspect_data` says of some data; every text in it is a stranger's."""

    ok: bool
    kind: str
    task: str | None
    problems: tuple[Mapping[str, Any], ...]
    num_problems: int
    columns: tuple[Mapping[str, Any], ...]
    label_column: str | None
    preview: Mapping[str, Any]
    dataset: Dataset | None
    counts: Mapping[str, Mapping[str, int]]
    memory: Mapping[str, Mapping[str, Mapping[str, int | None]]] = field(default_factory=dict)


class OwnData:
    """Looks, and remembers what it saw for as long as the files stay what they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking: dict[str, threading.Lock] = {}
        self._seen: dict[_Key, Look] = {}

    def remembered(self, config: Config) -> Look | None:
        """Return what was seen of this data the last time, if nothing has changed since."""
        return self._seen.get(_key(config))

    def look(self, config: Config, *, anew: bool = False) -> Look:
        """Look at the data; takes from a second to minutes.

        Args:
            anew: look even where this data was seen before (a change deep in a folder cannot be told).

        Raises:
            ConfigError: when there is nothing to look at.
            LookError: when the process failed.
        """
        if not config.data_path:
            allowed = "the path of a folder or zip of images, a table, or a text file"
            raise ConfigError([Problem(field="data_path", value="", allowed=allowed)])
        with self._lock:
            one_at_a_time = self._looking.setdefault(config.data_path, threading.Lock())
            self._forget_old_paths()
        # Somebody else's large data must not hold this up.
        with one_at_a_time:
            key = _key(config)
            seen = None if anew else self._seen.get(key)
            if seen is None:
                seen = _ask(config)
                with self._lock:
                    self._seen.pop(key, None)
                    while len(self._seen) >= MAX_REMEMBERED:
                        del self._seen[next(iter(self._seen))]
                    self._seen[key] = seen
            return seen

    def _forget_old_paths(self) -> None:
        while len(self._looking) > MAX_REMEMBERED:
            del self._looking[next(iter(self._looking))]

    def extend(self, catalogue: Catalogue, config: Config, look: Look | None) -> Catalogue:
        """Return a catalogue that has this data.

        Raises:
            ConfigError: when the data cannot be used, with its faults by name and line.
        """
        if look is None:
            allowed = "data that has been looked at: press Look at it"
            raise ConfigError([Problem(field="data_path", value=config.data_path, allowed=allowed)])
        if look.dataset is None or not look.ok:
            faults = [problem_in_words(problem) for problem in look.problems if problem["is_fatal"]]
            more = [f"And {len(faults) - MAX_PROBLEMS_TOLD} more."] if len(faults) > MAX_PROBLEMS_TOLD else []
            told = " ".join([*faults[:MAX_PROBLEMS_TOLD], *more])
            allowed = f"data without these faults: {told.removesuffix('.')}"
            raise ConfigError([Problem(field="data_path", value=config.data_path, allowed=allowed)])
        return catalogue.with_dataset(look.dataset, look.counts)


def problem_in_words(problem: Mapping[str, Any]) -> str:
    """Return one fault as a line: where, what, and what to do."""
    line = f", line {problem['line']:,}" if problem.get("line") else ""
    return f"{problem['where']}{line}: {problem['message']} {problem['hint']}".strip()


def _ask(config: Config) -> Look:
    return _parse(look_process.look(config))


def _parse(raw: Mapping[str, Any]) -> Look:
    about = dict(raw["dataset"]) if raw["dataset"] else None
    counts = about.pop("models") if about else {}
    memory = about.pop("memory") if about else {}
    return Look(
        ok=raw["ok"],
        kind=raw["kind"],
        task=raw["task"],
        problems=tuple(raw["problems"]),
        num_problems=raw["num_problems"],
        columns=tuple(raw["columns"]),
        label_column=raw["label_column"],
        preview=raw["preview"],
        dataset=Dataset(**about) if about else None,
        counts=counts,
        memory=memory,
    )


def _key(config: Config) -> _Key:
    """Return what a look depends on: what was asked, and the file or folder as it is now.

    Of a folder also its folders count: the one a picture comes into or leaves changes its time.
    """
    try:
        path = Path(config.data_path).expanduser()
        state = [_state_of(path)]
        if path.is_dir():
            with os.scandir(path) as entries:
                seen = itertools.islice(entries, MAX_ENTRIES_SEEN)
                inside = sorted(entry.path for entry in seen if entry.is_dir())
            state += [_state_of(Path(folder)) for folder in inside[:MAX_FOLDERS_WATCHED]]
    except (OSError, ValueError, RuntimeError):  # RuntimeError: "~" of a user who is not there
        state = []
    asked = (config.data_path, config.label_column, config.data_task)
    return (*asked, config.skip_unreadable, config.sequence_length, *state)


def _state_of(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_mtime_ns, about.st_size, about.st_ino
