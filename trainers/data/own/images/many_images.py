"""Reads the headers of many images, or decodes them, on all cores."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from trainers.data.own.common import limits, pool
from trainers.data.own.common.progress import Progress
from trainers.data.own.images import decoding
from trainers.data.own.images.classes import LabelledFile
from trainers.data.own.images.decoding import Header, Pixels, Shape, Sums, UnreadableImageError, sums_of
from trainers.data.own.images.image_sources import ImageSource

_HEADERS_AT_ONCE = 64
_IMAGES_AT_ONCE = 16

# The name of a file, and what is wrong with it.
Fault = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """What came of some files.

    Attributes:
        files: those that can be decoded.
        pixels: theirs, (files, channels, height, width); used again when the next are asked for.
        sums: of their pixels, see `sums_of`.
        faults: the others.
    """

    files: Sequence[LabelledFile]
    pixels: Pixels
    sums: Sums
    faults: Sequence[Fault]


def read_headers(source: ImageSource, files: Sequence[LabelledFile]) -> Iterator[Header | str]:
    """Yield each file's header, or why it cannot be read."""

    def read(pieces: range, _: memoryview) -> list[Header | str]:
        return [_header(source, files[index].name) for index in pieces]

    for headers, _ in pool.in_chunks(read, len(files), _HEADERS_AT_ONCE):
        yield from headers


def decode_all(
    source: ImageSource,
    files: Sequence[LabelledFile],
    shape: Shape,
    progress: Progress,
    known: Mapping[str, Pixels] = MappingProxyType({}),
    white: float = 65535.0,
) -> Iterator[Decoded]:
    """Yield what comes of one chunk of files after the other; the pixels of some are `known`.

    Args:
        white: see `decoding.decode`.
    """

    def pixels_in(room: memoryview) -> Pixels:
        return np.frombuffer(room, dtype=np.uint8).reshape(_IMAGES_AT_ONCE, *shape)

    def decode(pieces: range, room: memoryview) -> tuple[list[int], Sums, list[Fault]]:
        pixels = pixels_in(room)
        good: list[int] = []
        faults: list[Fault] = []
        for index in pieces:
            name = files[index].name
            try:
                seen = known.get(name)
                pixels[len(good)] = decode_one(source, name, shape, white) if seen is None else seen
                good.append(index)
            except UnreadableImageError as error:
                faults.append((name, str(error)))
        return good, sums_of(pixels[: len(good)]), faults

    room_bytes = _IMAGES_AT_ONCE * math.prod(shape)
    for (good, sums, faults), room in pool.in_chunks(decode, len(files), _IMAGES_AT_ONCE, room_bytes):
        progress.add(len(good) + len(faults))
        there = [files[index] for index in good]
        yield Decoded(files=there, pixels=pixels_in(room)[: len(good)], sums=sums, faults=faults)
    progress.finish()


def decode_one(source: ImageSource, name: str, shape: Shape, white: float = 65535.0) -> Pixels:
    """Return (channels, height, width) of one image.

    Raises:
        UnreadableImageError: when it cannot be decoded.
    """
    return decoding.decode(_opened(source, name), shape, white)


def highest_of(source: ImageSource, names: Sequence[str]) -> float:
    """Return the highest value of some images of more than 8 bits; unreadable ones are passed over."""
    found = 0.0
    for name in names:
        limits.check_time()
        with contextlib.suppress(UnreadableImageError):
            found = max(found, decoding.highest(_opened(source, name)))
    return found


def _header(source: ImageSource, name: str) -> Header | str:
    try:
        return decoding.read_header(_opened(source, name))
    except UnreadableImageError as error:
        return str(error)


def _opened(source: ImageSource, name: str) -> BinaryIO:
    with decoding.told():
        return source.open(name)
