"""Reads the headers of many images, or decodes them, on all cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from trainers.owndata import decoding, pool
from trainers.owndata.classes import LabelledFile
from trainers.owndata.decoding import Header, Pixels, UnreadableImageError
from trainers.owndata.image_sources import ImageSource
from trainers.owndata.progress import Progress

_HEADERS_AT_ONCE = 64
_IMAGES_AT_ONCE = 16

Shape = tuple[int, int, int]
# The name of a file, and what is wrong with it.
Fault = tuple[str, str]
Decoded = tuple[Sequence[LabelledFile], Pixels, list[Fault]]


def read_headers(source: ImageSource, files: Sequence[LabelledFile]) -> Iterator[Header | str]:
    """Yield each file's header, or why it cannot be read."""

    def read(chunk: Sequence[LabelledFile]) -> list[Header | str]:
        return [_header(source, file.name) for file in chunk]

    for chunk in pool.in_chunks(read, files, _HEADERS_AT_ONCE):
        yield from chunk


def decode_all(
    source: ImageSource,
    files: Sequence[LabelledFile],
    shape: Shape,
    progress: Progress,
    known: Mapping[str, Pixels] = MappingProxyType({}),
) -> Iterator[Decoded]:
    """Yield one chunk of files after the other, with the pixels and the faults in it; some are `known`."""

    def decode(chunk: Sequence[LabelledFile]) -> Decoded:
        return chunk, *decode_chunk(source, chunk, shape, known)

    for chunk, pixels, faults in pool.in_chunks(decode, files, _IMAGES_AT_ONCE):
        progress.add(len(chunk))
        yield chunk, pixels, faults
    progress.finish()


def decode_chunk(
    source: ImageSource,
    chunk: Sequence[LabelledFile],
    shape: Shape,
    known: Mapping[str, Pixels] = MappingProxyType({}),
) -> tuple[Pixels, list[Fault]]:
    """Return (images, channels, height, width) of what can be decoded, and the faults of the rest."""
    pixels, faults = [], []
    for file in chunk:
        if (seen := known.get(file.name)) is not None:
            pixels.append(seen)
            continue
        try:
            pixels.append(decoding.decode(_opened(source, file.name), shape))
        except UnreadableImageError as error:
            faults.append((file.name, str(error)))
    return np.stack(pixels) if pixels else np.empty((0, *shape), dtype=np.uint8), faults


def _header(source: ImageSource, name: str) -> Header | str:
    try:
        return decoding.read_header(_opened(source, name))
    except UnreadableImageError as error:
        return str(error)


def _opened(source: ImageSource, name: str) -> BinaryIO:
    with decoding.told():
        return source.open(name)
