"""The event queue on disk: kinds and fields, appending, and reading by byte offset.

One JSON object a line. Every event has `seq` (0, 1, 2, … without gaps), `time_unix_s` and `kind`, then
the fields of its kind. A last line without its newline is not an event yet.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from trainers.contract import event_check, fence
from trainers.contract.event_lines import encode
from trainers.files import private_files
from trainers.files.json_files import MAX_JSON_BYTES, is_too_large, read_lines
from trainers.files.plain_files import open_plain
from trainers.machine import os_errors

Event = dict[str, Any]
State = Literal[
    "queued", "starting", "running", "paused", "stopping", "finished", "stopped", "failed", "lost"
]

STATES: tuple[State, ...] = (
    "queued", "starting", "running", "paused", "stopping", "finished", "stopped", "failed", "lost",
)  # fmt: skip
LIVE_STATES = frozenset({"queued", "starting", "running", "paused", "stopping"})
ENDED_STATES = frozenset(STATES) - LIVE_STATES

COMMON_FIELDS = ("seq", "time_unix_s", "kind")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "state": ("state", "reason"),
    "plan": (
        "num_train",
        "num_validation",
        "num_parameters",
        "global_batch",
        "steps_per_epoch",
        "num_steps",
        "class_names",
        "all_reduce",
        "dealing",
        "trivial",
    ),
    "step": ("step", "epoch", "loss", "lr", "grad_norm", "samples_per_s", "step_time_s", "data_time_s"),
    "eval": ("step", "epoch", "loss", "metrics", "confusion"),
    "devices": ("devices", "others_cpu_percent", "idle_cpu_percent"),
    "ranks": ("ranks",),
    "checkpoint": ("step", "path", "size_bytes", "duration_s", "stall_s", "reason", "removed"),
    "command": ("id", "name", "step", "accepted", "message", "arguments"),
    "warning": ("code", "message", "hint", "rank", "traceback"),
    "error": ("code", "message", "hint", "rank", "traceback"),
    "sample": ("step", "type", "content"),
    "fingerprints": ("step", "hashes", "distances"),
    "recording": ("step", "num_steps", "path", "size_bytes", "duration_s"),
}
DEVICE_FIELDS = (
    "rank", "node", "kind", "index", "name", "utilization_percent", "memory_used_bytes",
    "memory_total_bytes", "temperature_celsius", "power_watts",
)  # fmt: skip
RANK_FIELDS = (
    "rank", "step", "step_time_s", "data_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s",
    "wait_time_s", "all_reduce_time_s", "hidden_time_s", "doing", "base_memory_bytes", "peak_memory_bytes",
    "parameter_bytes", "gradient_bytes", "optimizer_bytes",
)  # fmt: skip
CHECKPOINT_REASONS = ("button", "schedule", "best", "stop", "end")
# By which metric evaluations are compared: the first of these that is there; whether more of it is better.
PRIMARY_METRICS: Mapping[str, bool] = {"perplexity": False, "rmse": False, "accuracy": True}

_BLOCK_BYTES = 256 * 1024
# No event is longer. Readers skip a longer line, and one above the other limits of JSON.
MAX_LINE_BYTES = MAX_JSON_BYTES
# The effort of a search from the end of the file: bytes parsed, a line counting as at least this many.
_MOST_PARSED_BYTES = 8 * 1024 * 1024
_LEAST_PARSED_BYTES = 200
# In an event that would be too long, texts are cut to this many characters.
_CUT_TEXT = 2_000
_LOCK_WAIT_S = 1.0
_LOCK_POLL_S = 0.005


def primary_metric(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of the metric by which an evaluation is compared."""
    return next((name for name in PRIMARY_METRICS if name in metrics), None)


def is_better(name: str, value: float | None, best: float | None) -> bool:
    """Tell whether a value of a primary metric beats the best so far; one that is no number never does."""
    if value is None or not math.isfinite(value):
        return False
    return best is None or (value > best if PRIMARY_METRICS[name] else value < best)


def read(path: Path, offset: int = 0, kinds: tuple[str, ...] = ()) -> tuple[list[Event], int]:
    """Return the whole events after byte `offset` and the offset to read on from.

    A missing file has no events, and a damaged line is none. At most `MAX_LINE_BYTES` are read at once; call
    again for the rest.

    Args:
        kinds: only these; the others' lines are not even parsed. None named are all.
    """
    marks = [b'"kind":"%b"' % kind.encode() for kind in kinds]
    try:
        with open_plain(path) as file:
            chunk, end = read_lines(file, offset)
    except FileNotFoundError:
        return [], offset
    lines = chunk.split(b"\n")
    if marks:
        lines = [line for line in lines if any(mark in line for mark in marks)]
    found = [event for line in lines if (event := parse_line(line))]
    # What is marked may be words within another event.
    return [event for event in found if not marks or event["kind"] in kinds], end


def last(path: Path) -> Event | None:
    """Return the newest whole event without reading the whole file."""
    return _newest(path, b"", lambda _: True)


def parse_line(line: bytes) -> Event | None:
    """Return the event of one line, or None where there is none that can be read."""
    return event_check.parse_line(line) if line else None


def read_all(path: Path) -> Iterator[Event]:
    """Yield every whole event of a file, however long it is."""
    offset = 0
    while True:
        batch, end = read(path, offset)
        if end == offset:
            return
        yield from batch
        offset = end


def last_state(path: Path) -> State | None:
    """Return the state of the newest `state` event, or None; searches from the end of the file."""
    newest = _newest(
        path, b'"kind":"state"', lambda event: event["kind"] == "state" and event["state"] in STATES
    )
    return None if newest is None else newest["state"]


def _newest(path: Path, mark: bytes, is_wanted: Callable[[Event], bool]) -> Event | None:
    """Return the newest wanted event; None if there is none before the effort is spent.

    Args:
        mark: only lines with these bytes are parsed, each once.
    """
    effort = 0
    try:
        with open_plain(path) as file:
            for line in _lines_backwards(file, mark):
                event = parse_line(line)
                if event is not None and is_wanted(event):
                    return event
                effort += max(len(line), _LEAST_PARSED_BYTES)
                if effort > _MOST_PARSED_BYTES:
                    return None
    except FileNotFoundError:
        return None
    return None


def _lines_backwards(file: BinaryIO, mark: bytes) -> Iterator[bytes]:
    """Yield the whole lines with a mark in them, newest first, each once; too long ones are skipped."""
    end = file.seek(0, os.SEEK_END)
    # The end of a line that begins in an earlier block. The last line of the file is no event until it has
    # its newline, so it is skipped like one that is too long.
    rest, is_skipped = b"", True
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        chunk = file.read(end - start) + rest
        end = start
        begin = chunk.find(b"\n") + 1
        if begin == 0 and start > 0:
            is_skipped |= len(chunk) > MAX_LINE_BYTES
            rest = b"" if is_skipped else chunk
            continue
        first = 0 if start == 0 else begin
        if chunk.find(mark, first) >= 0:
            lines = chunk[first:].split(b"\n")
            if is_skipped:
                lines.pop()
            yield from (line for line in reversed(lines) if mark in line)
        rest, is_skipped = chunk[:begin].removesuffix(b"\n"), False


class EventFile:
    """Appends events to a run's file, numbering on from what is there.

    A half-written last line, left by a writer that was killed, is cut off first. A write that fails half-way
    leaves whole lines: somebody may have read them already, so they are not taken back. Rank 0 writes; where
    the supervisor has something to say meanwhile, a lock on the file keeps the two apart.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = private_files.open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = -1
        self.next_seq = 0
        with self.alone():
            pass

    def append(self, events: Iterable[tuple[float, str, Mapping[str, Any]]]) -> int:
        """Write (time_unix_s, kind, fields) triples in one go; return how many of them are in the file.

        Fewer than were given: the disk is full; call again later with the rest.

        Raises:
            OSError: when nothing of them could be kept (disk full, read-only); call again later with all.
            SupersededError: when this process belongs to an earlier start of the run.
        """
        with self.alone(), os_errors.about(self._path):
            fence.require_newest(self._path.parent)
            return self._append(events)

    def _append(self, events: Iterable[tuple[float, str, Mapping[str, Any]]]) -> int:
        seq = self.next_seq
        lines = []
        for time_unix_s, kind, fields in events:
            lines.append(_line({"seq": seq, "time_unix_s": round(time_unix_s, 4), "kind": kind, **fields}))
            seq += 1
        if not lines:
            return 0
        data = b"\n".join(lines) + b"\n"
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            written = data.rfind(b"\n", 0, written) + 1
            os.ftruncate(self._fd, self._size + written)
            if written == 0:
                raise
        kept = data.count(b"\n", 0, written)
        self._size += written
        self.next_seq += kept
        return kept

    def close(self) -> None:
        """Make the events durable and close the file."""
        os.fsync(self._fd)
        os.close(self._fd)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the file's lock, knowing of what another writer has added since the last time.

        Raises:
            BlockingIOError: when another writer does not give it back.
        """
        deadline = time.monotonic() + _LOCK_WAIT_S
        while not _try_lock(self._fd):
            if time.monotonic() > deadline:
                raise BlockingIOError(errno.EAGAIN, "another process is writing events", str(self._path))
            time.sleep(_LOCK_POLL_S)
        try:
            if os.fstat(self._fd).st_size != self._size:
                self._size = self._cut_half_line()
                newest = last(self._path)
                self.next_seq = 0 if newest is None else newest["seq"] + 1
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _cut_half_line(self) -> int:
        size = os.fstat(self._fd).st_size
        keep = size
        while keep > 0:
            start = max(0, keep - 65536)
            newline = os.pread(self._fd, keep - start, start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep != size:
            os.ftruncate(self._fd, keep)
        return keep


def _line(event: Event) -> bytes:
    """Return an event as a line that every reader accepts: where it would be too long, its texts are cut.

    If that is not enough, a warning takes its place, because numbers must have no gap.
    """
    line = encode(event)
    if not is_too_large(line):
        return line
    cut = {name: value[:_CUT_TEXT] if isinstance(value, str) else value for name, value in event.items()}
    shorter = encode(cut)
    if not is_too_large(shorter):
        return shorter
    message = f"An event of the kind {event['kind'][:40]} is too large to be written ({len(line):,} bytes)."
    words = {"code": "event_too_large", "message": message, "hint": None, "rank": None, "traceback": None}
    return encode({name: event[name] for name in COMMON_FIELDS} | {"kind": "warning"} | words)


def _try_lock(fd: int) -> bool:
    """Take a file's lock; True also where the file system knows no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            raise
    return True
