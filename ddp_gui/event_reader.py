"""Reads a run's events fast: whole batches at once, or a taste of a file that is too long to wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

import orjson

from trainers.contract.events import Event

# Small enough that the parsed events of one batch stay in the processor's cache.
BATCH_BYTES = 256 * 1024
TASTE_BLOCKS = 250
TASTE_BLOCK_BYTES = 2 * 1024


def read_batch(path: Path, offset: int) -> tuple[list[Event], int]:
    """Return the whole events of the next part of a file and the offset to read on from.

    Raises:
        OSError: when the file cannot be read.
        ValueError: when a line is not JSON.
    """
    with path.open("rb") as file:
        file.seek(offset)
        chunk = file.read(BATCH_BYTES)
        end = chunk.rfind(b"\n") + 1
        while end == 0 and (more := file.read(BATCH_BYTES)):  # one very long line
            chunk += more
            end = chunk.rfind(b"\n") + 1
    return _parse(chunk[:end]), offset + end


def taste(path: Path) -> list[Event]:
    """Return some events from all over a file, in order, without reading the whole of it."""
    size = path.stat().st_size
    found: list[Event] = []
    with path.open("rb") as file:
        for block in range(TASTE_BLOCKS):
            start = block * max(0, size - TASTE_BLOCK_BYTES) // (TASTE_BLOCKS - 1)
            found += _whole_lines_at(file, start)
    return found


def _whole_lines_at(file: BinaryIO, start: int) -> list[Event]:
    file.seek(start)
    block = file.read(TASTE_BLOCK_BYTES)
    first = 0 if start == 0 else block.find(b"\n") + 1
    return _parse(block[first : block.rfind(b"\n") + 1])


def _parse(lines: bytes) -> list[Event]:
    """Parse lines of JSON, all at once."""
    joined = b"[" + lines.strip(b"\n").replace(b"\n", b",") + b"]"
    try:
        batch: list[Event] = orjson.loads(joined)
    except orjson.JSONDecodeError:
        # Half a surrogate pair, from a file name that is not UTF-8: only the slower parser takes it.
        return [json.loads(line) for line in lines.splitlines() if line]
    return batch
