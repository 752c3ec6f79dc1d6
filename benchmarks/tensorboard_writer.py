"""Write scalars with TensorBoard's own writer; run by the Python that has TensorBoard installed.

    python benchmarks/tensorboard_writer.py LOG_DIR

Each line of the standard input is a JSON list: the time, the step, and an object of tags and values. Every
line is written and flushed at once; an empty line asks for `ready` when all before it is on disk.
"""

from __future__ import annotations

import json
import sys

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def main() -> None:
    """Write until the input ends."""
    writer = EventFileWriter(sys.argv[1], max_queue_size=100_000)
    is_live = False
    for line in sys.stdin:
        if not line.strip():
            is_live = True
            writer.flush()
            print("ready", flush=True)
            continue
        wall_time, step, values = json.loads(line)
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        writer.add_event(Event(wall_time=wall_time, step=step, summary=Summary(value=scalars)))
        if is_live:
            writer.flush()
    writer.close()


if __name__ == "__main__":
    main()
