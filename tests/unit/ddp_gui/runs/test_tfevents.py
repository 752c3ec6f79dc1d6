"""TensorBoard event files, compared with a file from TensorBoard's own writer."""

from __future__ import annotations

from ddp_gui.runs import exports
from tests.golden import tfevents_values as golden
from tests.harness import REPOSITORY

FILE = REPOSITORY / "tests" / "golden" / "scalars.tfevents"


def test_the_bytes_are_those_of_tensorboard() -> None:
    written = exports.version_record(golden.BEGAN)
    for time_unix_s, step, values in golden.SCALARS:
        (record,) = exports.scalar_records([time_unix_s], [step], list(values), [list(values.values())])
        written += record
    assert written == FILE.read_bytes()
