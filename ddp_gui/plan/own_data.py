"""The user's own data, inspected in a short-lived process, so that the page never loads it."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ddp_gui.background import trainer_process
from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.background.trainer_process import InspectionError
from ddp_gui.background.workers import CLICKS, Workers
from ddp_gui.plan.catalogue import Catalogue
from trainers.contract.catalogue import CatalogueDataset
from trainers.contract.config import Config, ConfigError, Problem

MAX_LISTED_PROBLEMS = 5
MAX_CACHED = 64
MAX_FOLDERS_WATCHED = 1000
MAX_SCANNED_ENTRIES = 10_000

__all__ = ["Inspection", "InspectionError", "OwnDataInspector", "problem_line"]

# Each inspection starts a process that may use gigabytes of memory.
READERS = Workers("inspections of data", num_threads=2, per_person=1, max_requests=4)

_Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of `python -m trainers.plugins.inspect_data`; every text in it is untrusted."""

    ok: bool
    kind: str
    task: str | None
    problems: tuple[Mapping[str, Any], ...]
    num_problems: int
    columns: tuple[Mapping[str, Any], ...]
    label_column: str | None
    preview: Mapping[str, Any]
    dataset: CatalogueDataset | None
    counts: Mapping[str, Mapping[str, int]]
    memory: Mapping[str, Mapping[str, Mapping[str, int | None]]] = field(default_factory=dict)
    num_to_leave_out: int = 0


class NotInspectedError(ConfigError):
    """The data has not been inspected yet, which is not the user's mistake."""


class FaultyDataError(ConfigError):
    """The data was inspected and has problems that prevent training."""


class OwnDataInspector:
    """Inspects data, and caches the results until the files change.

    Args:
        template: the process that forks the inspecting processes.
    """

    def __init__(self, template: TorchTemplate | None = None) -> None:
        self._template = template or TorchTemplate()
        # Inspections also change this cache after their clients have disconnected.
        self._lock = threading.RLock()
        self._pending: dict[_Key, Future[Inspection]] = {}
        self._inspections: dict[_Key, Inspection] = {}

    def find_cached(self, config: Config) -> Inspection | None:
        """Return the cached inspection of this data, or None if there is none or the data has changed."""
        return self._inspections.get(_key(config))

    async def inspect(self, config: Config, *, ignore_cache: bool = False) -> Inspection:
        """Inspect the data. Takes from a second to minutes, without blocking a thread.

        Concurrent requests for the same data share one inspection.

        Args:
            ignore_cache: ignore the cache (a change deep in a folder cannot be detected).
        Raises:
            ConfigError: if no data is given.
            InspectionError: if the process failed.
            TooManyError: if the current user has too many inspections running.
        """
        _require_data_path(config)
        key = await CLICKS.run(_key, config)
        with self._lock:
            if not ignore_cache and (cached := self._inspections.get(key)) is not None:
                return cached
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = READERS.submit(partial(self._inspect_and_cache, config, key))
                pending.add_done_callback(lambda _: self._pending.pop(key, None))
        # A cancelled request must not cancel the inspection for other requests.
        return await asyncio.shield(asyncio.wrap_future(pending))

    def _inspect_and_cache(self, config: Config, key: _Key) -> Inspection:
        inspection = _inspect(config, self._template)
        with self._lock:
            self._inspections.pop(key, None)
            while len(self._inspections) >= MAX_CACHED:
                del self._inspections[next(iter(self._inspections))]
            self._inspections[key] = inspection
        return inspection

    def extend(self, catalogue: Catalogue, config: Config, inspection: Inspection | None) -> Catalogue:
        """Return a catalogue that includes this data.

        Raises:
            FaultyDataError: if the data cannot be used; lists the problems by name and line.
            NotInspectedError: if it has not been inspected.
        """
        _require_data_path(config)
        if inspection is None:
            allowed = "data that has been inspected: press Inspect"
            raise NotInspectedError([Problem(field="data_path", value=config.data_path, allowed=allowed)])
        if inspection.dataset is None or not inspection.ok:
            faults = [problem_line(problem) for problem in inspection.problems if problem["is_fatal"]]
            more = (
                [f"And {len(faults) - MAX_LISTED_PROBLEMS} more."]
                if len(faults) > MAX_LISTED_PROBLEMS
                else []
            )
            problems_text = " ".join([*faults[:MAX_LISTED_PROBLEMS], *more])
            allowed = f"data without these faults: {problems_text.removesuffix('.')}"
            raise FaultyDataError([Problem(field="data_path", value=config.data_path, allowed=allowed)])
        return catalogue.with_dataset(inspection.dataset, inspection.counts)


def _require_data_path(config: Config) -> None:
    if not config.data_path:
        allowed = "the path of a folder or zip of images, a table, or a text file"
        raise ConfigError([Problem(field="data_path", value="", allowed=allowed)])


def problem_line(problem: Mapping[str, Any]) -> str:
    """Return one fault as a line: place, message and advice."""
    line = f", line {problem['line']:,}" if problem.get("line") else ""
    return f"{problem['where']}{line}: {problem['message']} {problem['hint']}".strip()


def _inspect(config: Config, template: TorchTemplate) -> Inspection:
    return _parse(trainer_process.inspect_data(config, template))


def _parse(raw: Mapping[str, Any]) -> Inspection:
    values = {name: raw[name] for name in Inspection.__dataclass_fields__ if name in raw}
    values |= {name: tuple(raw[name]) for name in ("problems", "columns")}
    dataset_values = dict(raw["dataset"] or {})
    counts, memory = dataset_values.pop("models", {}), dataset_values.pop("memory", {})
    return Inspection(
        **values
        | {
            "dataset": CatalogueDataset(**dataset_values) if dataset_values else None,
            "counts": counts,
            "memory": memory,
        }
    )


def _key(config: Config) -> _Key:
    """Return the cache key of an inspection: the options, and the state of the resolved file or folder.

    Includes subfolders: adding or removing an image changes the modification time of its folder.
    """
    try:
        path = Path(config.data_path).expanduser().resolve()
        name = str(path)
        state = [_file_state(path)]
        if path.is_dir():
            with os.scandir(path) as entries:
                scanned = itertools.islice(entries, MAX_SCANNED_ENTRIES)
                subfolders = sorted(entry.path for entry in scanned if entry.is_dir())
            state += [_file_state(Path(folder)) for folder in subfolders[:MAX_FOLDERS_WATCHED]]
    except (OSError, ValueError, RuntimeError):  # RuntimeError: "~" of an unknown user
        name, state = config.data_path, []
    options = (name, config.label_column, config.data_task, config.images_path, config.data_reading)
    return (*options, config.skip_unreadable, config.sequence_length, *state)


def _file_state(path: Path) -> tuple[int, int, int]:
    file_stat = path.stat()
    return file_stat.st_mtime_ns, file_stat.st_size, file_stat.st_ino
