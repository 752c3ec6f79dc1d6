"""TensorBoard event files, compared with a file from TensorBoard's own writer."""

from __future__ import annotations

import numpy as np
import pytest

from ddp_gui.runs import exports
from tests.golden import tfevents_values as golden
from tests.harness import REPOSITORY

FILE = REPOSITORY / "tests" / "golden" / "scalars.tfevents"


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (
            bytes.fromhex(
                "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
                "0200000000000000"
            ),
            0xD9963A56,
        ),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_check_sums_of_rfc_3720(data: bytes, crc: int) -> None:
    rows = np.frombuffer(data * 3, dtype=np.uint8).reshape(3, -1)
    assert exports.crc32c(rows).tolist() == [crc] * 3


def test_the_bytes_are_those_of_tensorboard() -> None:
    written = exports.version_record(golden.BEGAN)
    for time_unix_s, step, values in golden.SCALARS:
        (record,) = exports.scalar_records([time_unix_s], [step], list(values), [list(values.values())])
        written += record
    assert written == FILE.read_bytes()


def test_many_steps_at_once_are_the_same_bytes_as_one_by_one() -> None:
    steps = [1, 127, 128, 129, 16383, 16384, 3_000_000, 5]
    times = [1.5 + step for step in steps]
    values = [[float(step), -1.0 / step] for step in steps]
    together = exports.scalar_records(times, steps, ["a", "b/c"], values)
    alone = [
        exports.scalar_records([time], [step], ["a", "b/c"], [value])[0]
        for time, step, value in zip(times, steps, values, strict=True)
    ]
    assert together == alone
