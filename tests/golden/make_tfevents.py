"""Write the event file with which our writer is compared; needs the package tensorboard.

python -m tests.golden.make_tfevents
"""

from __future__ import annotations

from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-not-found,import-untyped]
from tensorboard.summary.writer.record_writer import (  # type: ignore[import-not-found,import-untyped]
    RecordWriter,
)

from tests.golden.tfevents_values import BEGAN, SCALARS

FILE = Path(__file__).parent / "scalars.tfevents"


def main() -> None:
    """Write the file with TensorBoard's code."""
    with FILE.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(event_pb2.Event(wall_time=BEGAN, file_version="brain.Event:2").SerializeToString())
        for time_unix_s, step, values in SCALARS:
            summary = summary_pb2.Summary(
                value=[
                    summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
                ]
            )
            writer.write(
                event_pb2.Event(wall_time=time_unix_s, step=step, summary=summary).SerializeToString()
            )
        writer.flush()


if __name__ == "__main__":
    main()
