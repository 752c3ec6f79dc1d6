"""TensorBoard event files, compared with a file from TensorBoard's own writer."""

from __future__ import annotations

from ddp_gui.runs import exports
from tests.golden import tfevents_values as golden
from tests.harness import REPOSITORY

FILE = REPOSITORY / "tests" / "golden" / "scalars.tfevents"


def test_the_bytes_are_those_of_tensorboard() -> None:
    written = exports.version_record(golden.BEGAN)
    written += b"".join(exports.framed([exports.scalar_event(*scalar) for scalar in golden.SCALARS]))
    assert written == FILE.read_bytes()
