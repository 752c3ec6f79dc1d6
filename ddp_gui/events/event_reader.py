"""Reads a run's events fast: whole batches at once, or a sample of a file that is too long to wait for."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import orjson

from trainers.contract import events
from trainers.contract.event_check import is_whole
from trainers.contract.events import Event
from trainers.files.json_files import is_too_large, read_lines
from trainers.files.plain_files import open_plain

# Small enough that the parsed events of one batch stay in the processor's cache.
BATCH_BYTES = 256 * 1024
# The errors that an event with missing or invalid fields can cause.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
TASTE_BLOCKS = 250
TASTE_BLOCK_BYTES = 2 * 1024


def read_batch(path: Path, offset: int) -> tuple[list[Event], int]:
    """Return the events of the next part of a file and the offset to read on from.

    Damaged lines are skipped. Of the step events only those that are shown unchanged are validated.

    Raises:
        OSError: when the file cannot be read.
    """
    with open_plain(path) as file:
        lines, end = read_lines(file, offset, BATCH_BYTES)
    return _parse(lines), end


def read_carefully(path: Path, offset: int) -> tuple[list[Event], int, int]:
    """Do the same, validate every event, and also return how many lines are damaged.

    It takes several times as long: for files in which damage was found.

    Raises:
        OSError: when the file cannot be read.
    """
    with open_plain(path) as file:
        lines, end = read_lines(file, offset, BATCH_BYTES)
    batch = _parse_carefully(lines)
    # Of a line that is too long only a part has been read.
    num_lines = lines.count(b"\n") if lines else int(end > offset)
    return batch, end, num_lines - len(batch)


def taste(path: Path) -> list[Event]:
    """Return a sample of events spread over a file, in order, without reading the whole file."""
    size = path.stat().st_size
    found: list[Event] = []
    with open_plain(path) as file:
        for block in range(TASTE_BLOCKS):
            start = block * max(0, size - TASTE_BLOCK_BYTES) // (TASTE_BLOCKS - 1)
            found += _whole_lines_at(file, start)
    return found


def _whole_lines_at(file: BinaryIO, start: int) -> list[Event]:
    file.seek(start)
    block = file.read(TASTE_BLOCK_BYTES)
    first = 0 if start == 0 else block.find(b"\n") + 1
    return _parse_carefully(block[first : block.rfind(b"\n") + 1])


def _parse(lines: bytes) -> list[Event]:
    """Parse lines of JSON, all at once."""
    if is_too_large(lines):  # one line of it may be
        return _parse_carefully(lines)
    joined = b"[" + lines.strip(b"\n").replace(b"\n", b",") + b"]"
    try:
        batch: list[Event] = orjson.loads(joined)
    except orjson.JSONDecodeError:
        # Half a surrogate pair, from a file name that is not UTF-8, which only the slower parser takes; or
        # a damaged line.
        return _parse_carefully(lines)
    return batch if _may_be_shown(batch) else _parse_carefully(lines)


def _parse_carefully(lines: bytes) -> list[Event]:
    return [event for line in lines.split(b"\n") if (event := events.parse_line(line))]


def _may_be_shown(batch: list[Event]) -> bool:
    """Tell whether every event that is passed on unchanged is valid: of step events only the last ones.

    The numbers of the other step events only go into columns, which take no others.
    """
    step: Event | None = None
    for event in batch:
        if not isinstance(event, dict) or "kind" not in event:
            return False
        if event["kind"] == "step":
            step = event
        elif is_whole(event) and (step is None or is_whole(step)):
            step = None
        else:
            return False
    return step is None or is_whole(step)
