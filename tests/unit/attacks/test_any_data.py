"""Fuzz tests of the readers of custom data: the fuzz targets' invariants hold for any file (hypothesis)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddp_gui.runs import exports
from tests.fuzz import examples, targets
from tests.unit.own_files import own_cache  # noqa: F401 - a fixture
from trainers.data.own import image_files

ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
cells = st.one_of(
    st.sampled_from(
        ["", "1", "2.5", "x", "y", "1e999", "nan", "0x10", "\uff11", '"', '""', "=1+1", "2026-01-01"]
    ),
    st.text(max_size=8),
    st.floats().map(str),
)
tables = st.tuples(
    st.sampled_from([",", ";", "\t", "|"]),
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=30)
    ),
).map(lambda about: "\n".join(about[0].join(row) for row in about[1]).encode("utf-8", errors="surrogatepass"))


def damaged(whole: list[bytes]) -> st.SearchStrategy[bytes]:
    """Return valid files with some bytes changed, removed or inserted."""

    def damage(raw: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
        for place, length, other in changes:
            at = int(place * len(raw))
            raw = raw[:at] + other + raw[at + length :]
        return raw

    one = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 4), st.binary(max_size=4))
    return st.builds(damage, st.sampled_from(whole), st.lists(one, min_size=1, max_size=4))


@ONCE
@given(
    st.one_of(st.binary(max_size=300), tables, damaged(examples.of("csv"))), st.sampled_from([".csv", ".tsv"])
)
@example(b'a,b\n"' + b"x,1\n" * 50, ".csv")
@example("a,b\n1,x\n".encode("utf-16"), ".csv")
@example(b"a,b\n\xff\xfe\n", ".csv")
@example(b"a,b\n1,\0\n", ".csv")
@example(b"\xef\xbb\xbfa,label\n" + b"1.5,x\n2.5,y\n" * 9, ".csv")
def test_any_table_is_read_or_refused(data: bytes, suffix: str) -> None:
    targets.read_data(data, suffix, skip_unreadable=len(data) % 2 == 0)


@ONCE
@given(
    st.one_of(
        st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
    )
)
@example(b"x" * 16)
@example("\U0010ffff".encode() * 20)
def test_any_text_is_read_or_refused(data: bytes) -> None:
    targets.read_data(data, ".txt", sequence_length=2)


@ONCE
@given(st.one_of(st.binary(max_size=300), damaged(examples.of("zip"))), st.booleans())
def test_any_zip_is_read_or_refused(data: bytes, skip: bool) -> None:
    targets.read_data(data, ".zip", skip_unreadable=skip)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=100), damaged(examples.images())))
def test_any_image_is_decoded_or_refused(data: bytes) -> None:
    targets.read_image(data)


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "RGB") for name in examples.FORMATS), ("JPEG", "CMYK"), ("TIFF", "I;16")]
    + [("PNG", mode) for mode in examples.MODES if mode != "CMYK"],
)
def test_every_kind_of_image_is_decoded(name: str, mode: str) -> None:
    raw = examples.image(name, mode)
    assert raw is not None
    source: Any = targets.OneImage(raw)
    pixels = image_files.decode(source, "image", (3, 8, 8))
    assert pixels.shape == (3, 8, 8) and pixels.dtype == np.uint8


finite = st.floats(-(2.0**100), 2.0**100, width=32)
tags = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    min_size=1,
    max_size=4,
    unique=True,
)
places = st.lists(st.tuples(st.floats(0, 1e10), st.integers(0, 2**40)), min_size=1, max_size=9)


@given(tags, places, st.data())
def test_what_is_written_for_tensorboard_is_read_back(
    names: list[str], rows: list[tuple[float, int]], data: st.DataObject
) -> None:
    values = [data.draw(st.lists(finite, min_size=len(names), max_size=len(names))) for _ in rows]
    written = exports.framed(
        [
            exports.scalar_event(time, step, dict(zip(names, row, strict=True)))
            for (time, step), row in zip(rows, values, strict=True)
        ]
    )
    for record, (time, step), row in zip(written, rows, values, strict=True):
        assert _read_record(record) == (time, step, dict(zip(names, row, strict=True)))


def _read_record(record: bytes) -> tuple[float, int, dict[str, float]]:
    """Parse one record according to the specifications: TFRecord, event.proto, summary.proto."""
    (length,) = struct.unpack("<Q", record[:8])
    body = record[12 : 12 + length]
    assert len(record) == length + 16
    assert struct.unpack("<I", record[8:12])[0] == _masked_crc(record[:8])
    assert struct.unpack("<I", record[-4:])[0] == _masked_crc(body)
    event = _fields(body)
    read = {}
    for value in _fields(event[5][0]).get(1, []):
        inside = _fields(value)
        read[inside[1][0].decode()] = struct.unpack("<f", inside[2][0])[0]
    return struct.unpack("<d", event[1][0])[0], event.get(2, [0])[0], read


def _fields(raw: bytes) -> dict[int, list]:
    found: dict[int, list] = {}
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(raw, at)
        else:
            size, at = _varint(raw, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = raw[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at


def _masked_crc(raw: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
