"""Reads events of runs: complete files for views, digests for lists, numbers for exports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson

from ddp_gui.events import fold
from ddp_gui.events.fold import Fold
from ddp_gui.events.tables import BinnedCurve
from trainers.contract import events
from trainers.contract.events import Event, is_complete_event
from trainers.files.json_files import is_too_large, read_lines
from trainers.files.plain_files import open_plain

# Bytes per batch, so small that the parsed events stay in the processor's cache.
BATCH_BYTES = 256 * 1024
# The errors that an event with missing or invalid fields can cause.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
NUM_SAMPLE_BLOCKS = 250
SAMPLE_BLOCK_BYTES = 2 * 1024


def read_batch(path: Path, offset: int, *, is_careful: bool = True) -> tuple[list[Event], int, int]:
    """Return the events of the next part of a file, the offset for the next call, and the damaged lines.

    Damaged lines are skipped and counted.

    Args:
        is_careful: True to validate every event, which takes several times as long; False to validate only
            those step events that the page shows unchanged.

    Raises:
        OSError: if the file cannot be read.
    """
    with open_plain(path) as file:
        lines, end = read_lines(file, offset, BATCH_BYTES)
    batch = _parse_carefully(lines) if is_careful else _parse(lines)
    # A line that is too long was read only in part.
    num_lines = lines.count(b"\n") if lines else int(end > offset)
    return batch, end, num_lines - len(batch)


def sample_events(path: Path) -> list[Event]:
    """Return events from positions spread over a file, in order, without reading the entire file."""
    size = path.stat().st_size
    sampled: list[Event] = []
    with open_plain(path) as file:
        for block in range(NUM_SAMPLE_BLOCKS):
            start = block * max(0, size - SAMPLE_BLOCK_BYTES) // (NUM_SAMPLE_BLOCKS - 1)
            sampled += _complete_lines_at(file, start)
    return sampled


def _complete_lines_at(file: BinaryIO, start: int) -> list[Event]:
    file.seek(start)
    block = file.read(SAMPLE_BLOCK_BYTES)
    first = 0 if start == 0 else block.find(b"\n") + 1
    return _parse_carefully(block[first : block.rfind(b"\n") + 1])


def _parse(lines: bytes) -> list[Event]:
    """Parse lines of JSON in one call."""
    if is_too_large(lines):  # one of the lines may be too large
        return _parse_carefully(lines)
    joined = b"[" + lines.strip(b"\n").replace(b"\n", b",") + b"]"
    try:
        batch: list[Event] = orjson.loads(joined)
    except orjson.JSONDecodeError:
        # The cause is half a surrogate pair (from a file name that is not UTF-8), which only the slower
        # parser accepts, or a damaged line.
        return _parse_carefully(lines)
    return batch if _may_be_shown(batch) else _parse_carefully(lines)


def _parse_carefully(lines: bytes) -> list[Event]:
    return [event for line in lines.split(b"\n") if (event := events.parse_line(line))]


def _may_be_shown(batch: list[Event]) -> bool:
    """Return True if all events that are shown unchanged are valid: of step events only the last ones.

    The other step events only go into numeric columns, which accept only numbers.
    """
    step: Event | None = None
    for event in batch:
        if not isinstance(event, dict) or "kind" not in event:
            return False
        if event["kind"] == "step":
            step = event
        elif is_complete_event(event) and (step is None or is_complete_event(step)):
            step = None
        else:
            return False
    return step is None or is_complete_event(step)


DEVICE_KINDS = ("cpu", "cuda")


@dataclass
class Digest(Fold):
    """The latest numbers of a run, its best evaluation, its duration and its sparkline."""

    offset: int = 0
    inode: int = 0
    num_steps: int | None = None
    loss: float | None = None
    device_kind: str | None = None
    curve: BinnedCurve = field(default_factory=BinnedCurve)
    # True after a damaged line was found; then every line is validated.
    is_careful: bool = False

    @property
    def took_s(self) -> float | None:
        """The seconds the run was active, without the time between stop and resume."""
        return None if self.began_unix_s is None else self.active_s()

    def serialise(self) -> str:
        """Serialise the digest as a short text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def deserialise(cls, text: str) -> Digest:
        """Return the digest that `serialise` returned as text.

        Raises:
            ValueError, LookupError, TypeError: if the text is not a digest.
        """
        raw = orjson.loads(text)
        records = [(int(step), float(value)) for step, value in raw["records"]]
        return cls(**raw | {"curve": BinnedCurve(**raw["curve"]), "records": records})

    def is_of_another_file(self, path: Path) -> bool:
        """Return True if the file belongs to another run, because the run was deleted and created again."""
        if self.offset == 0:
            return False
        try:
            file_stat = path.stat()
        except FileNotFoundError:
            return True
        return file_stat.st_ino != self.inode or file_stat.st_size < self.offset

    def catch_up(self, path: Path, time_limit_s: float | None = None) -> bool:
        """Read the events after the last read; return True if nothing is left to read.

        A last line without a newline is read later.

        Args:
            time_limit_s: stop after about this time, even if there is more.
        """
        ends_at = None if time_limit_s is None else time.monotonic() + time_limit_s
        try:
            self.inode = path.stat().st_ino
            while self._take_batch(path):
                if ends_at is not None and time.monotonic() > ends_at:
                    return False
        except FileNotFoundError:
            pass
        return True

    def _take_batch(self, path: Path) -> bool:
        try:
            batch, end, _ = read_batch(path, self.offset, is_careful=self.is_careful)
            self._take(batch)
        except DAMAGE:
            if self.is_careful:
                raise
            # Start over, because a partially added batch cannot be undone.
            vars(self).update(vars(Digest(inode=self.inode, is_careful=True)))
            return True
        has_more, self.offset = end > self.offset, end
        return has_more

    def _take(self, batch: list[Event]) -> None:
        steps: list[Event] = []
        for event in batch:
            # Use every event's time, because the clock may have been set back between any two events.
            self.take_time(event["time_unix_s"], is_start=fold.is_start(event))
            kind = event["kind"]
            if kind == "step":
                steps.append(event)
            elif kind == "eval":
                self._take_steps(steps)
                steps = []
                self.take_evaluation(event["step"], event["metrics"])
            elif kind == "plan" or (kind == "script" and event.get("num_steps") is not None):
                self.num_steps = event["num_steps"]
            elif kind == "devices" and self.device_kind is None and event["devices"]:
                device_kind = event["devices"][0].get("kind")
                self.device_kind = device_kind if device_kind in DEVICE_KINDS else None
        self._take_steps(steps)

    def _take_steps(self, batch: list[Event]) -> None:
        if not batch:
            return
        steps = np.array([event["step"] for event in batch], np.int64)
        losses = np.array([event["loss"] for event in batch], np.float64)  # null becomes NaN
        remaining = self.take_batch(steps)
        if remaining.cut_from is not None:
            self.curve.cut_from(remaining.cut_from)
        self.curve.add(steps[remaining.rows], losses[remaining.rows])
        self.loss = float(losses[-1]) if np.isfinite(losses[-1]) else None


MAX_BATCH_EVENTS = 8_192
# Maximum number of values in memory: a run can have so many metrics that a few evaluations reach this limit.
MAX_CELLS = 4_000_000


@dataclass
class Survey:
    """Facts about a file that an export needs before it can write the first row."""

    last_seq: int = -1
    began_unix_s: float | None = None
    metrics: list[str] = field(default_factory=list)
    # Pairs (event, step): events from this one on replace the steps from this step on.
    cuts: list[tuple[int, int]] = field(default_factory=list)


def survey_numbers(path: Path) -> Survey:
    """Read a run's events once and return what its exports need."""
    survey, step = Survey(), 0
    metrics: dict[str, None] = {}
    for event in _events(path):
        if event["kind"] == "step":
            if event["step"] <= step:
                survey.cuts.append((event["seq"], event["step"]))
            step = event["step"]
        elif event["kind"] == "eval":
            metrics |= dict.fromkeys(event["metrics"])
        survey.last_seq = event["seq"]
        if survey.began_unix_s is None:
            survey.began_unix_s = event["time_unix_s"]
    survey.metrics = list(metrics)
    return survey


def history_of_numbers(path: Path, survey: Survey) -> Iterator[list[Event]]:
    """Yield the step and eval events that were not replaced, some thousand at a time, each with `elapsed_s`.

    `elapsed_s` is the active time of the run in seconds, without the time between stop and resume.
    """
    max_events = max(1, min(MAX_BATCH_EVENTS, MAX_CELLS // max(1, len(survey.metrics))))
    cuts = _limits_in_order(survey.cuts)
    cut_seq, cut_step = next(cuts)
    progress = Fold()
    batch: list[Event] = []
    for event in _events(path):
        if event["seq"] > survey.last_seq:
            break  # written after the survey
        progress.take_time(event["time_unix_s"], is_start=fold.is_start(event))
        while event["seq"] >= cut_seq:
            cut_seq, cut_step = next(cuts)
        if event["kind"] in ("step", "eval") and event["step"] < cut_step:
            event["elapsed_s"] = round(progress.active_s(), 4)
            batch.append(event)
        if len(batch) >= max_events:
            yield batch
            batch = []
    if batch:
        yield batch


def _limits_in_order(cuts: list[tuple[int, int]]) -> Iterator[tuple[float, float]]:
    """Yield (event, step): before this event, only steps below this step are valid."""
    lowest: list[tuple[float, float]] = [(float("inf"), float("inf"))]
    for seq, step in reversed(cuts):
        lowest.append((seq, min(step, lowest[-1][1])))
    return iter(reversed(lowest))


def _events(path: Path) -> Iterator[Event]:
    offset = 0
    while True:
        try:
            batch, end, _ = read_batch(path, offset)
        except FileNotFoundError:
            return
        if end == offset:
            return
        yield from batch
        offset = end
