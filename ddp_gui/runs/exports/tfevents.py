"""Writes TensorBoard's event files: TFRecord framing around hand-encoded protocol buffers.

The formats: tensorflow/core/lib/io/record_writer.h (length, masked CRC-32C of it, data, masked CRC-32C of
it) and tensorflow/core/util/event.proto. Whole blocks of events are encoded at once, column by column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float64]

FILE_VERSION = b"brain.Event:2"
_CASTAGNOLI = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
# Field number and wire type of event.proto and summary.proto, as they stand before each value.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"


def _make_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_CASTAGNOLI), table >> 1).astype(np.uint32)
    return table


_TABLE = _make_table()


def crc32c(rows: Bytes) -> npt.NDArray[np.uint32]:
    """Return the CRC-32C (RFC 3720) of each row."""
    crc: npt.NDArray[np.uint32] = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    low, eight = np.uint32(0xFF), np.uint32(8)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & low] ^ (crc >> eight)
    return crc ^ np.uint32(0xFFFFFFFF)


def masked_crc32c(rows: Bytes) -> npt.NDArray[np.uint32]:
    """Return each row's CRC-32C the way TFRecord files hold it."""
    crc = crc32c(rows)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK_DELTA)


def version_record(time_unix_s: float) -> bytes:
    """Return the record with which every event file begins."""
    event = _WALL_TIME + np.float64(time_unix_s).tobytes()
    event += _FILE_VERSION + varint(len(FILE_VERSION)) + FILE_VERSION
    return _framed(np.frombuffer(event, dtype=np.uint8)[None, :])[0]


def scalar_records(
    times_unix_s: npt.ArrayLike, steps: npt.ArrayLike, tags: Sequence[str], values: npt.ArrayLike
) -> list[bytes]:
    """Return one record for each step with the value of each tag.

    Args:
        values: one row a step, one column a tag.
    """
    times, numbers = np.asarray(times_unix_s, dtype="<f8"), np.asarray(steps, dtype=np.uint64)
    scalars = np.asarray(values, dtype="<f4").reshape(len(numbers), len(tags))
    lengths = 1 + sum((numbers >= 1 << bits).astype(np.int64) for bits in range(7, 64, 7))
    records: list[bytes] = [b""] * len(numbers)
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        rows = _events(times[chosen], _varints(numbers[chosen], length), tags, scalars[chosen])
        for index, record in zip(chosen.tolist(), _framed(rows), strict=True):
            records[index] = record
    return records


def varint(value: int) -> bytes:
    """Return a number of 0 or more, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varints(values: npt.NDArray[np.uint64], length: int) -> Bytes:
    """Return numbers that all take as many bytes, one a row."""
    shifts = 7 * np.arange(length, dtype=np.uint64)
    encoded = ((values[:, None] >> shifts) & np.uint64(0x7F)).astype(np.uint8)
    encoded[:, :-1] |= 0x80
    return encoded


def _events(times: Numbers, steps: Bytes, tags: Sequence[str], values: npt.NDArray[np.float32]) -> Bytes:
    """Return events of equal length, one a row: only times, steps and values differ."""
    names = [tag.encode() for tag in tags]
    heads = [_TAG + varint(len(name)) + name + _SIMPLE_VALUE for name in names]
    heads = [_VALUE + varint(len(head) + 4) + head for head in heads]
    summary_length = sum(len(head) + 4 for head in heads)
    count = len(times)
    parts: list[Bytes] = [
        _repeated(_WALL_TIME, count),
        np.ascontiguousarray(times).view(np.uint8).reshape(count, 8),
        _repeated(_STEP, count),
        steps,
        _repeated(_SUMMARY + varint(summary_length), count),
    ]
    for column, head in enumerate(heads):
        parts.append(_repeated(head, count))
        parts.append(np.ascontiguousarray(values[:, column]).view(np.uint8).reshape(count, 4))
    return np.concatenate(parts, axis=1)


def _framed(rows: Bytes) -> list[bytes]:
    count, length = rows.shape
    size = np.frombuffer(length.to_bytes(8, "little"), dtype=np.uint8)[None, :]
    framed = np.concatenate(
        [
            _repeated(size.tobytes(), count),
            _repeated(masked_crc32c(size).astype("<u4").tobytes(), count),
            rows,
            masked_crc32c(rows).astype("<u4").view(np.uint8).reshape(count, 4),
        ],
        axis=1,
    )
    whole, size_bytes = framed.tobytes(), framed.shape[1]
    return [whole[start : start + size_bytes] for start in range(0, len(whole), size_bytes)]


def _repeated(piece: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(piece, dtype=np.uint8), (count, len(piece)))
