"""The newest sample of every rank of one machine, in memory that they share.

A rank writes its own place and waits for nobody; who reads it takes what is whole. So a rank that hangs costs
nothing, and what is left in its place is the last it said.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from typing import Any

from trainers.machine import memory_file
from trainers.machine.memory_file import MemoryFile

PLACE_BYTES = 8192
# What is written, and its checksum: whoever reads sees by it that all of it is there.
_HEAD = struct.Struct("<II")


class SampleBoard:
    """A place for each rank of this machine.

    Args:
        content: the memory they share.

    Attributes:
        num_places: how many ranks it has room for.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.num_places = len(content) // PLACE_BYTES
        self._newest: dict[int, Any] = {}

    def write(self, place: int, sample: Any) -> None:
        """Put a sample, a JSON value, into a place.

        Raises:
            ValueError: when it does not fit.
        """
        text = json.dumps(sample).encode()
        if _HEAD.size + len(text) > PLACE_BYTES:
            raise ValueError(f"a sample of {len(text)} bytes does not fit into {PLACE_BYTES}")
        start = place * PLACE_BYTES
        whole = _HEAD.pack(len(text), zlib.crc32(text)) + text
        self._content[start : start + len(whole)] = whole

    def read(self) -> list[Any]:
        """Return the newest sample of each place that has one, in their order."""
        for place in range(self.num_places):
            start = place * PLACE_BYTES
            whole = self._content[start : start + PLACE_BYTES]
            length, checksum = _HEAD.unpack_from(whole)
            text = whole[_HEAD.size : _HEAD.size + length]
            # One that is being written just now counts the next time.
            if length and len(text) == length and zlib.crc32(text) == checksum:
                self._newest[place] = json.loads(text)
        return [self._newest[place] for place in sorted(self._newest)]


def make(num_places: int) -> tuple[SampleBoard, MemoryFile]:
    """Return a board, and the file by whose address the other ranks find it."""
    file = MemoryFile("samples", num_places * PLACE_BYTES)
    return SampleBoard(file.map()), file


def find(address: str) -> SampleBoard:
    """Return the board that another rank of this machine has made.

    Raises:
        OSError: when there is none.
    """
    return SampleBoard(memory_file.map_file(address))
