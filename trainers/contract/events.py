"""Event kinds, their fields and checks, and the lines of events.jsonl."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, get_args

from trainers.contract import fence
from trainers.files import private_files
from trainers.files.json_files import MAX_JSON_BYTES, is_shallow, is_too_large, parse_json, read_lines
from trainers.files.plain_files import open_plain
from trainers.machine import os_errors

Check = Callable[[Any], bool]


class _Optional(NamedTuple):
    """The check of a field that may be missing or null, because earlier versions do not write it."""

    is_valid: Check


def is_complete_event(value: Any) -> bool:
    """Return True if a value has the fields that all readers of events rely on.

    Unknown kinds are accepted, because a newer version may have written them; so are missing fields that
    earlier versions did not write.
    """
    if not (_has(value, _COMMON) and _has(value, _REQUIRED.get(value["kind"], {}))):
        return False
    optional = _OPTIONAL.get(value["kind"], _UNKNOWN_KIND_FIELDS)
    are_valid = all(value.get(name) is None or is_valid(value[name]) for name, is_valid in optional.items())
    return are_valid and is_shallow(value)


def _has(value: Any, fields: Mapping[str, Check]) -> bool:
    return isinstance(value, dict) and all(
        name in value and is_valid(value[name]) for name, is_valid in fields.items()
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _is_step(value: Any) -> bool:
    return _is_count(value) and 1 <= value < 2**53  # JavaScript represents integers below this exactly


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_number_or_none(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_metrics(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number_or_none, value.values()))


def _is_rank_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        _has(item, {"rank": _is_count}) and all(map(_is_plain, item.values())) for item in value
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool) or _is_number_or_none(value)


def _is_dealing(value: Any) -> bool:
    counts = dict.fromkeys(("step", "epoch", "samples_in_epoch"), _is_count)
    return _has(value, counts | dict.fromkeys(("batch_size", "num_accumulated", "num_replicas"), _is_step))


def _is_trivial(value: Any) -> bool:
    texts, numbers = ("predictor", "metric"), ("value", "standard_error", "loss")
    return _has(
        value,
        dict.fromkeys(texts, _is_text)
        | dict.fromkeys(numbers, _is_number)
        | {"answer": _is_plain, "inputs_differ": lambda differ: isinstance(differ, bool)},
    ) and _is_number(value.get("train_loss", 0.0))  # added in a later version


def _is_start(value: Any) -> bool:
    counts = ("step", "num_classes_before", "num_classes")
    is_valid = _has(value, {"run_id": _is_text, **dict.fromkeys(counts, _is_count)})
    return is_valid and _is_list_of(_is_text)(value.get("replaced"))


def _is_list_of(is_valid: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


_COMMON: Mapping[str, Check] = {"seq": _is_count, "time_unix_s": _is_number, "kind": _is_text}
_optional_count, _optional_number, _optional_text = (
    _Optional(_is_count),
    _Optional(_is_number),
    _Optional(_is_text),
)
_optional_counts, _optional_texts = _Optional(_is_list_of(_is_count)), _Optional(_is_list_of(_is_text))
_optional_flag = _Optional(lambda value: isinstance(value, bool))
_MESSAGE_FIELDS: Mapping[str, Check] = {"code": _is_text, "message": _is_text, "hint": _is_text_or_none}
# The fields of each kind, in the order in which they are written, with their checks.
_KINDS: Mapping[str, Mapping[str, Check | _Optional]] = {
    "state": {"state": _is_text, "reason": _is_text},
    "plan": {
        "num_train": _is_count,
        "num_validation": _optional_count,
        "num_parameters": _optional_count,
        "num_trained": _optional_count,
        "global_batch": _optional_count,
        "steps_per_epoch": _optional_count,
        "num_steps": _is_count,
        "class_names": _optional_texts,
        "all_reduce": _optional_text,
        "dealing": _Optional(_is_dealing),
        "trivial": _Optional(_is_trivial),
        "start": _Optional(_is_start),
    },
    "step": {
        "step": _is_step,
        "epoch": _is_count,
        "loss": _is_number_or_none,
        "lr": _is_number_or_none,
        "grad_norm": _is_number_or_none,
        "samples_per_s": _is_number_or_none,
        "step_time_s": _is_number_or_none,
        "data_time_s": _is_number_or_none,
    },
    "eval": {
        "step": _is_count,
        "epoch": _optional_count,
        "loss": _is_number_or_none,
        "metrics": _is_metrics,
        "confusion": _Optional(_is_list_of(_is_list_of(_is_number))),
    },
    "devices": {
        "devices": _is_rank_list,
        "others_cpu_percent": _optional_number,
        "idle_cpu_percent": _optional_number,
    },
    "ranks": {"ranks": _is_rank_list},
    "checkpoint": {
        "step": _is_count,
        "path": _optional_text,
        "size_bytes": _optional_number,
        "duration_s": _optional_number,
        "stall_s": _optional_number,
        "reason": _optional_text,
        "removed": _optional_counts,
    },
    "command": {
        "id": _is_text,
        "name": _is_text,
        "step": _optional_count,
        "accepted": _optional_flag,
        "message": _optional_text,
        "arguments": _Optional(lambda value: isinstance(value, dict) and all(map(_is_plain, value.values()))),
    },
    "warning": {**_MESSAGE_FIELDS, "rank": _optional_count, "traceback": _optional_text},
    "error": {**_MESSAGE_FIELDS, "rank": _optional_count, "traceback": _optional_text},
    "sample": {"step": _is_count, "type": _optional_text, "content": _Optional(lambda _: True)},
    "fingerprints": {
        "step": _is_step,
        "hashes": lambda value: _is_list_of(_is_text)(value) and len(value) > 0,
        "distances": _is_list_of(_is_number_or_none),
    },
    "recording": {
        "step": _is_step,
        "num_steps": _is_count,
        "path": _optional_text,
        "size_bytes": _optional_number,
        "duration_s": _optional_number,
    },
    "script": {
        "entry": _is_text,
        "model": _optional_text,
        "num_parameters": _optional_count,
        "optimizer": _optional_text,
        "backend": _optional_text,
        "num_train": _optional_count,
        "global_batch": _optional_count,
        "steps_per_epoch": _optional_count,
        "num_epochs": _optional_count,
        "num_steps": _optional_count,
        "replaced": _optional_texts,
        "saves": _optional_flag,
        "groups": _Optional(
            _is_list_of(lambda group: _has(group, {"num_parameters": _is_count, "lr": _is_number_or_none}))
        ),
        "buckets": _optional_counts,
    },
    "finding": {
        **_MESSAGE_FIELDS,
        "level": _is_text,
        "file": _optional_text,
        "line": _optional_count,
        "rank": _optional_count,
        "lesson": _optional_text,
    },
}
_REQUIRED: Mapping[str, Mapping[str, Check]] = {
    kind: {name: check for name, check in checks.items() if not isinstance(check, _Optional)}
    for kind, checks in _KINDS.items()
}
_OPTIONAL: Mapping[str, Mapping[str, Check]] = {
    kind: {name: check.is_valid for name, check in checks.items() if isinstance(check, _Optional)}
    for kind, checks in _KINDS.items()
}
_UNKNOWN_KIND_FIELDS: Mapping[str, Check] = {"step": _is_count}


Event = dict[str, Any]
State = Literal[
    "queued", "starting", "running", "paused", "stopping", "finished", "stopped", "failed", "lost"
]

STATES: tuple[State, ...] = get_args(State)
LIVE_STATES = frozenset({"queued", "starting", "running", "paused", "stopping"})
ENDED_STATES = frozenset(STATES) - LIVE_STATES

COMMON_FIELDS = tuple(_COMMON)
FIELDS: Mapping[str, tuple[str, ...]] = {kind: tuple(checks) for kind, checks in _KINDS.items()}
DEVICE_FIELDS = (
    "rank", "node", "kind", "index", "name", "utilization_percent", "memory_used_bytes",
    "memory_total_bytes", "temperature_celsius", "power_watts",
)  # fmt: skip
RANK_FIELDS = (
    "rank", "step", "step_time_s", "data_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s",
    "wait_time_s", "all_reduce_time_s", "hidden_time_s", "doing", "base_memory_bytes", "peak_memory_bytes",
    "parameter_bytes", "gradient_bytes", "optimizer_bytes", "loss",
)  # fmt: skip
# Evaluations are compared by the first of these metrics that is present; True: higher is better.
PRIMARY_METRICS: Mapping[str, bool] = {"perplexity": False, "rmse": False, "accuracy": True}

_BLOCK_BYTES = 256 * 1024
# Maximum length of an event. Readers skip longer lines, and lines that exceed the other limits of JSON.
MAX_LINE_BYTES = MAX_JSON_BYTES
# Limit of a search from the end of the file, in parsed bytes; each line counts as at least 200.
_MAX_PARSED_BYTES = 8 * 1024 * 1024
_MIN_PARSED_BYTES = 200
# If an event would be too long, its texts are cut to this many characters.
_CUT_TEXT = 2_000
_LOCK_WAIT_S = 1.0


def primary_metric(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of the metric by which evaluations are compared."""
    return next((name for name in PRIMARY_METRICS if name in metrics), None)


def is_better(name: str, value: float | None, best: float | None) -> bool:
    """Return True if a value of a primary metric beats the best so far; None and NaN never do."""
    if value is None or not math.isfinite(value):
        return False
    return best is None or (value > best if PRIMARY_METRICS[name] else value < best)


def read(
    path: Path, offset: int = 0, kinds: tuple[str, ...] = (), max_bytes: int = MAX_LINE_BYTES
) -> tuple[list[Event], int]:
    """Return the complete events after byte `offset`, and the offset for the next call.

    A missing file has no events; damaged lines are skipped. Call again for the rest of a longer file.

    Args:
        kinds: only these kinds; lines of other kinds are not parsed. Empty: all kinds.
        max_bytes: approximate number of bytes to read, at most `MAX_LINE_BYTES`.
    """
    marks = [b'"kind":"%b"' % kind.encode() for kind in kinds]
    try:
        with open_plain(path) as file:
            chunk, end = read_lines(file, offset, max_bytes)
    except FileNotFoundError:
        return [], offset
    lines = chunk.split(b"\n")
    if marks:
        lines = [line for line in lines if any(mark in line for mark in marks)]
    events = [event for line in lines if (event := parse_line(line))]
    # Compare the kind, too: the mark may occur in the text of another event.
    return [event for event in events if not marks or event["kind"] in kinds], end


def last(path: Path) -> Event | None:
    """Return the last complete event without reading the entire file."""
    return _find_last(path, b"", lambda _: True)


def parse_line(line: bytes) -> Event | None:
    """Return the event of one line, or None if it is empty, damaged or exceeds the limits of JSON."""
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if is_complete_event(value) else None


def read_all(path: Path) -> Iterator[Event]:
    """Yield every complete event of a file of any length."""
    offset = 0
    while True:
        batch, end = read(path, offset)
        if end == offset:
            return
        yield from batch
        offset = end


def last_state(path: Path) -> State | None:
    """Return the state of the last `state` event, or None; searches from the end of the file."""
    event_of_state = _find_last(
        path, b'"kind":"state"', lambda event: event["kind"] == "state" and event["state"] in STATES
    )
    return None if event_of_state is None else event_of_state["state"]


def _find_last(path: Path, mark: bytes, matches: Callable[[Event], bool]) -> Event | None:
    """Return the last event that matches, or None if a search of limited length does not find one.

    Args:
        mark: only lines with these bytes are parsed, each once.
    """
    num_parsed_bytes = 0
    try:
        with open_plain(path) as file:
            for line in _lines_backwards(file, mark):
                event = parse_line(line)
                if event is not None and matches(event):
                    return event
                num_parsed_bytes += max(len(line), _MIN_PARSED_BYTES)
                if num_parsed_bytes > _MAX_PARSED_BYTES:
                    return None
    except FileNotFoundError:
        return None
    return None


def _lines_backwards(file: BinaryIO, mark: bytes) -> Iterator[bytes]:
    """Yield complete lines that contain a mark, last one first; lines that are too long are skipped."""
    end = file.seek(0, os.SEEK_END)
    # `line_end` is the end of a line that begins in an earlier block. The file's last line is not an event
    # until its newline is written, so it is skipped like a line that is too long.
    line_end, is_skipped = b"", True
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        chunk = file.read(end - start) + line_end
        end = start
        line_start = chunk.find(b"\n") + 1
        if line_start == 0 and start > 0:
            is_skipped |= len(chunk) > MAX_LINE_BYTES
            line_end = b"" if is_skipped else chunk
            continue
        first = 0 if start == 0 else line_start
        if chunk.find(mark, first) >= 0:
            lines = chunk[first:].split(b"\n")
            if is_skipped:
                lines.pop()
            yield from (line for line in reversed(lines) if mark in line)
        line_end, is_skipped = chunk[:line_start].removesuffix(b"\n"), False


class EventFile:
    """Appends events to a run's file and continues its numbering.

    A half-written last line, left by a killed writer, is removed first. A failed write leaves complete lines:
    they are not removed, because a reader may have seen them. Rank 0 is the usual writer; a lock on the file
    keeps its writes apart from the supervisor's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = private_files.open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._size = -1
        self.next_seq = 0
        with self.locked():
            pass

    def append(self, events: Iterable[tuple[float, str, Mapping[str, Any]]]) -> int:
        """Write (time_unix_s, kind, fields) triples in one write; return how many of them are in the file.

        If fewer than given, the disk is full; call again later with the rest.

        Raises:
            OSError: if nothing could be written (disk full, read-only); call again later with all events.
            SupersededError: if this process belongs to an earlier start of the run.
        """
        with self.locked(), os_errors.about(self._path):
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
        written_bytes = 0
        try:
            while written_bytes < len(data):
                written_bytes += os.write(self._fd, data[written_bytes:])
        except OSError:
            # Keep only the complete lines.
            written_bytes = data.rfind(b"\n", 0, written_bytes) + 1
            os.ftruncate(self._fd, self._size + written_bytes)
            if written_bytes == 0:
                raise
        num_written = data.count(b"\n", 0, written_bytes)
        self._size += written_bytes
        self.next_seq += num_written
        return num_written

    def close(self) -> None:
        """Make the events durable and close the file."""
        os.fsync(self._fd)
        os.close(self._fd)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file, and update size and numbering for the events of other writers.

        Raises:
            BlockingIOError: if another writer does not release the lock in time.
        """
        try:
            is_locked = private_files.lock_within(self._fd, _LOCK_WAIT_S)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                raise
            is_locked = True  # the file system has no locks
        if not is_locked:
            raise BlockingIOError(errno.EAGAIN, "another process is writing events", str(self._path))
        try:
            if os.fstat(self._fd).st_size != self._size:
                self._size = self._cut_half_line()
                last_event = last(self._path)
                self.next_seq = 0 if last_event is None else last_event["seq"] + 1
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _cut_half_line(self) -> int:
        size = os.fstat(self._fd).st_size
        end = size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._fd, end)
        return end


def _line(event: Event) -> bytes:
    """Return an event as a line that every reader accepts; texts are cut if the line would be too long.

    If that is not enough, a warning replaces the event, because sequence numbers must have no gap.
    """
    line = encode_event(event)
    if not is_too_large(line):
        return line
    shortened = {
        name: value[:_CUT_TEXT] if isinstance(value, str) else value for name, value in event.items()
    }
    shorter_line = encode_event(shortened)
    if not is_too_large(shorter_line):
        return shorter_line
    message = f"An event of the kind {event['kind'][:40]} is too large to be written ({len(line):,} bytes)."
    warning_fields = {
        "code": "event_too_large",
        "message": message,
        "hint": None,
        "rank": None,
        "traceback": None,
    }
    return encode_event({name: event[name] for name in COMMON_FIELDS} | {"kind": "warning"} | warning_fields)


try:
    import orjson
except ImportError:  # training runs without the page's requirements
    orjson = None  # type: ignore[assignment]


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Return an event as JSON, without a newline.

    NaN and infinity become null. A value of another type (a plug-in's tensor, for example) becomes its text,
    because no event may be lost over it.
    """
    if orjson is None:
        return encode_plainly(event)  # type: ignore[unreachable]
    try:
        # Pass datetimes to `str`, as the standard library's encoder does.
        return orjson.dumps(event, default=str, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError:
        return encode_plainly(event)  # integers of more than 64 bits, surrogates, keys that are not strings


def encode_plainly(event: Mapping[str, Any]) -> bytes:
    """Return an event as JSON with the standard library only."""
    try:
        text = _dump(event)
    except ValueError:
        text = _dump(_finite(event))
    # A lone surrogate (from a file name that is not UTF-8) becomes its JSON escape.
    return text.encode("utf-8", errors="backslashreplace")


# One encoder for all events: `json.dumps` spends half of its time on creating an encoder in each call.
_dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False, default=str).encode


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
