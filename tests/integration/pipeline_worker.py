"""Worker that sends and receives like a pipeline, then prints what is recorded. Started by torchrun."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from trainers.parallel import process_group
from trainers.watch import flight_recorder

NUM_BATCHES = 3


def main() -> int:
    """Pass batches between neighbouring ranks, enter two collectives, and print the latest recorded one."""
    world = process_group.join("cpu")
    values, received = torch.ones(4), torch.ones(4)
    for _ in range(NUM_BATCHES):
        if world.rank > 0:
            dist.recv(received, world.rank - 1)
            _wait([dist.P2POp(dist.irecv, received, world.rank - 1)])
        if world.rank < world.world_size - 1:
            dist.send(values, world.rank + 1)
            _wait([dist.P2POp(dist.isend, values, world.rank + 1)])
    dist.all_reduce(values)
    dist.broadcast(values, 0)
    groups = flight_recorder.recorded_groups()
    assert groups is not None
    newest = {str(group.newest) for group in groups if len(group.ranks) == world.world_size}
    os.write(1, f"{sorted(newest)}\n".encode())
    dist.destroy_process_group()
    return 0


def _wait(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations):
        work.wait()


if __name__ == "__main__":
    sys.exit(main())
