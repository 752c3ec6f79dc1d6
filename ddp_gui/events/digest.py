"""What the list shows of a run, computed from its events in chunks, without holding them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson

from ddp_gui.events import fold
from ddp_gui.events.curve import Curve, Losses
from ddp_gui.events.fold import Fold, Steps
from trainers.contract import events
from trainers.contract.event_lines import encode
from trainers.files.plain_files import open_plain

# The errors that a damaged line can cause.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
_TAKEN = {
    "step": ("step", "loss"),
    "eval": ("step", "metrics"),
    "plan": ("num_steps",),
    "state": ("state",),
}
_SCAN_BYTES = 4 * 1024 * 1024
_STEP_MARK = re.compile(rb'"kind":"step"')
_STEP = re.compile(rb'"kind":"step","step":(\d+),[^\n]*?"loss":([^,}\n]+)')
_STEP_LINE = re.compile(rb'^.*"kind":"step".*$', re.MULTILINE)
_EVAL_LINE = re.compile(rb'^.*"kind":"eval".*$', re.MULTILINE)
_START = re.compile(rb'^.*"kind":"state","state":"starting".*$', re.MULTILINE)
_TIME = re.compile(rb'^\{"seq":\d+,"time_unix_s":([^,}\n]+)', re.MULTILINE)


@dataclass
class Digest(Fold):
    """The newest numbers of a run, its best evaluation, its duration and its sparkline."""

    offset: int = 0
    inode: int = 0
    num_steps: int | None = None
    loss: float | None = None
    device_kind: str | None = None
    curve: Curve = field(default_factory=Curve)
    # A damaged line was found: from then on each line is validated.
    is_careful: bool = False

    @property
    def took_s(self) -> float | None:
        """The seconds the run was active, without the time between stop and resume."""
        return None if self.began_unix_s is None else self.active_s()

    def folded(self) -> str:
        """Serialise the digest as a short text."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def unfolded(cls, text: str) -> Digest:
        """Return the digest that `folded` serialised.

        Raises:
            ValueError, LookupError, TypeError: when it was not.
        """
        raw = orjson.loads(text)
        records = [(int(step), float(value)) for step, value in raw["records"]]
        return cls(**raw | {"curve": Curve(**raw["curve"]), "records": records})

    def is_of_another_file(self, path: Path) -> bool:
        """Tell whether the id now belongs to another run: deleted and created again."""
        if self.offset == 0:
            return False
        try:
            about = path.stat()
        except FileNotFoundError:
            return True
        return about.st_ino != self.inode or about.st_size < self.offset

    def catch_up(self, path: Path) -> None:
        """Read on from the end of the last read; a last line without its newline is left for later."""
        try:
            with open_plain(path) as file:
                self.inode = os.fstat(file.fileno()).st_ino
                size = _SCAN_BYTES
                while True:
                    file.seek(self.offset)
                    chunk = file.read(size)
                    end = chunk.rfind(b"\n") + 1
                    if end:
                        self._take_part(chunk[:end])
                    elif len(chunk) < size:
                        return
                    elif size < events.MAX_LINE_BYTES:
                        size *= 2  # one line longer than a chunk
                    else:
                        self.offset += len(chunk)  # longer than any event: skipped
        except FileNotFoundError:
            return

    def _take_part(self, chunk: bytes) -> None:
        if self.is_careful:
            whole = b"".join(
                _anew(event) for line in chunk.split(b"\n") if (event := events.parse_line(line))
            )
            if whole:
                self._take(whole)
            self.offset += len(chunk)
            return
        try:
            self._take(chunk)
            self.offset += len(chunk)
        except DAMAGE:
            # Start over: a partially added chunk cannot be undone.
            vars(self).update(vars(Digest(inode=self.inode, is_careful=True)))

    def _take(self, chunk: bytes) -> None:
        self._take_time(chunk)
        steps, losses = _steps_in(chunk)
        parts = fold.parts_of(steps, self.step)
        starts = [0, *_lines_of_steps(chunk, [part.begin for part in parts[1:]]), len(chunk)]
        for part, (start, end) in zip(parts, pairwise(starts), strict=True):
            if part.cut_from is not None:
                self.cut_from(part.cut_from)
                self.curve.cut_from(part.cut_from)
            self._take_upwards(chunk[start:end], steps[part.begin : part.end], losses[part.begin : part.end])
        if self.device_kind is None:
            devices = _last_line_with(chunk, b'"kind":"devices"')
            if devices is not None:
                self.device_kind = orjson.loads(devices)["devices"][0]["kind"]

    def _take_upwards(self, chunk: bytes, steps: Steps, losses: Losses) -> None:
        """Add lines in which the steps only increase."""
        if len(steps):
            self.curve.add(steps, losses)
            self.step = int(steps[-1])
            self.loss = float(losses[-1]) if np.isfinite(losses[-1]) else None
        for line in _EVAL_LINE.findall(chunk):
            event = orjson.loads(line)
            self.take_evaluation(event["step"], event["metrics"])
        plan = _last_line_with(chunk, b'"kind":"plan"')
        if plan is not None:
            self.num_steps = orjson.loads(plan)["num_steps"]

    def _take_time(self, chunk: bytes) -> None:
        # All of them: the clock may have been set back anywhere.
        begin = 0
        for start in _START.finditer(chunk):
            self._take_times_of(chunk[begin : start.start()])
            (time_unix_s,) = _times_in(start[0] + b"\n")
            self.take_time(time_unix_s, is_start=True)
            begin = start.end() + 1
        self._take_times_of(chunk[begin:])

    def _take_times_of(self, lines: bytes) -> None:
        if times := _times_in(lines):
            self.take_times(times)


def _anew(event: events.Event) -> bytes:
    """Re-encode an event as one line with the fields that are used, in the usual order."""
    taken = {name: event[name] for name in (*events.COMMON_FIELDS, *_TAKEN.get(event["kind"], ()))}
    if event["kind"] == "devices":
        kinds = [device.get("kind") for device in event["devices"][:1]]
        if kinds not in (["cpu"], ["cuda"]):
            return b""
        taken["devices"] = [{"kind": kinds[0]}]
    return encode(taken) + b"\n"


def _times_in(lines: bytes) -> list[float]:
    found = _TIME.findall(lines)
    if len(found) == lines.count(b"\n"):
        return list(map(float, found))
    # Written by another program, with the fields in another order.
    return [float(orjson.loads(line)["time_unix_s"]) for line in lines.splitlines()]


def _steps_in(chunk: bytes) -> tuple[Steps, Losses]:
    found = _STEP.findall(chunk)
    if len(found) == len(_STEP_MARK.findall(chunk)):
        numbers = [math.nan if loss == b"null" else float(loss) for _, loss in found]
        steps = [int(step) for step, _ in found]
    else:
        # Written by another program, with the fields in another order.
        lines = [orjson.loads(line) for line in _STEP_LINE.findall(chunk)]
        numbers = [math.nan if line["loss"] is None else float(line["loss"]) for line in lines]
        steps = [int(line["step"]) for line in lines]
    return np.array(steps, dtype=np.int64), np.array(numbers, dtype=np.float64)


def _lines_of_steps(chunk: bytes, numbers: Sequence[int]) -> list[int]:
    """Return where the lines of some of a chunk's step events begin."""
    marks = [mark.start() for mark in _STEP_MARK.finditer(chunk)] if numbers else []
    return [chunk.rfind(b"\n", 0, marks[number]) + 1 for number in numbers]


def _last_line_with(chunk: bytes, mark: bytes) -> bytes | None:
    found = chunk.rfind(mark)
    if found < 0:
        return None
    start = chunk.rfind(b"\n", 0, found) + 1
    return chunk[start : chunk.index(b"\n", found)]
