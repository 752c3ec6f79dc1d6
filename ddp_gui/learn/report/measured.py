"""Measurements of a run for a report, read from its events, with the hash of the events."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddp_gui.events.analysis import insights, pace
from ddp_gui.events.analysis import verdict as verdict_of
from ddp_gui.events.analysis.pace import Pace
from ddp_gui.events.analysis.verdict import Verdict
from ddp_gui.events.run_view import RunView
from ddp_gui.events.series import Series
from trainers.contract import events
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_plain
from trainers.machine import host, lifeline

CHUNK_BYTES = 1024 * 1024
MAX_WARNINGS = 12
# From this size on, several processes share the reading, which takes seconds (about 40 MB/s per core).
MIN_PARALLEL_BYTES = 50_000_000
MAX_READERS = 4
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Hashed:
    """SHA-256 of a run's events (of a live run: so far), and the number of hashed bytes."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """All data about one run for a report.

    Attributes:
        info: facts that do not come from the events (`request.gather_inputs`).
        config: configuration.
        hashed: None if the run has no events.
        warnings: insights, and warnings that the run logged.
    """

    info: Mapping[str, Any]
    config: Config
    series: Series
    pace: Pace | None
    verdict: Verdict | None
    warnings: tuple[str, ...]
    hashed: Hashed | None

    @property
    def is_live(self) -> bool:
        """True if the run was live when it was read."""
        return self.info["state"] in events.LIVE_STATES

    @property
    def num_steps(self) -> int:
        """Number of trained steps."""
        return int(self.series.last_step.get("step", 0))

    @property
    def last_loss(self) -> float | None:
        """Training loss of the latest step."""
        loss: float | None = self.series.last_step.get("loss")
        return loss

    @property
    def global_batch(self) -> int | None:
        """Number of samples per step over all ranks."""
        return _sample_count(self.series.plan.get("global_batch"))

    @property
    def max_memory_bytes(self) -> int | None:
        """Memory for model and training in the rank that used most; None if not measured."""
        ranks = self.series.latest.get("ranks", {}).get("ranks", [])
        pairs = [(rank.get("base_memory_bytes"), rank.get("peak_memory_bytes")) for rank in ranks]
        return max(
            (peak - base for base, peak in pairs if base is not None and peak is not None), default=None
        )

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """The ranks' devices, from the latest event that lists them."""
        return list(self.series.latest.get("devices", {}).get("devices", []))

    def samples_at(self, steps: npt.ArrayLike) -> Numbers:
        """Return the number of samples trained by all ranks after the given steps; NaN if unknown."""
        return self.series.samples_at(steps)


def read_all(runs: Sequence[Mapping[str, Any]]) -> list[Measured | None]:
    """Read the events of runs, with several processes if they are large; None for unreadable runs."""
    num_bytes = sum(map(_size, runs))
    num_readers = min(host.num_cores(), len(runs), MAX_READERS)
    if num_bytes < MIN_PARALLEL_BYTES or num_readers < 2:
        return list(map(_read_or_none, runs))
    # The reading processes end with this process, which ends with the page.
    with ProcessPoolExecutor(
        num_readers, mp_context=multiprocessing.get_context("spawn"), initializer=lifeline.die_with_parent
    ) as readers:
        return list(readers.map(_read_or_none, runs))


def _read_or_none(info: Mapping[str, Any]) -> Measured | None:
    try:
        return read(info)
    except (OSError, ValueError):
        return None


def _size(info: Mapping[str, Any]) -> int:
    try:
        return RunDirectory(Path(info["path"])).events.stat().st_size
    except OSError:
        return 0


def read(info: Mapping[str, Any]) -> Measured:
    """Read all events of a run.

    Raises:
        OSError: if they cannot be read.
        ValueError: if the file is not a regular file, or the configuration is invalid.
    """
    run = RunDirectory(Path(info["path"]))
    view = RunView(run, None)
    hashed = _hash(run.events)
    view.catch_up()
    series, state = view.series, info["state"]
    run_insights = insights.find(series, view.config, state)
    return Measured(
        info=info,
        config=view.config,
        series=series,
        pace=pace.pace_of_run(series, is_over=state not in events.LIVE_STATES),
        verdict=verdict_of.judge(series, state, run_insights),
        warnings=_warnings(series, [*insights.damage_insights(view.num_missing_events), *run_insights]),
        hashed=hashed,
    )


def _hash(path: Path) -> Hashed | None:
    """Hash a file up to its current end; None if it does not exist."""
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with open_plain(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                num_bytes += len(chunk)
    except FileNotFoundError:
        return None
    return Hashed(sha256=digest.hexdigest(), num_bytes=num_bytes)


def _warnings(series: Series, run_insights: list[insights.Insight]) -> tuple[str, ...]:
    logged = [str(mark["message"]) for mark in series.marks if mark["kind"] == "warning"]
    return tuple(dict.fromkeys([*(insight.message for insight in run_insights), *logged]))[:MAX_WARNINGS]


def _sample_count(value: object) -> int | None:
    """Return a positive number of samples, or None. A damaged file can contain any type."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return int(value) if is_number and isinstance(value, int) else None
