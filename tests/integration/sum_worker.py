"""Worker that averages tensors through shared memory and with gloo, and compares. Started by torchrun."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from trainers.parallel import process_group, shared_all_reduce

SIZES = (1, 7, 1000, shared_all_reduce.PIECE_BYTES // 4, shared_all_reduce.PIECE_BYTES // 4 * 3 + 5)


def main() -> int:
    """Average tensors of many sizes; print "same" if the means are bit-identical."""
    world = process_group.join("cpu")
    shared = shared_all_reduce.create(world, 60.0)
    assert shared is not None
    for turn, size in enumerate(SIZES * 20):
        kind = (torch.float32, torch.float64, torch.bfloat16)[turn % 3]
        torch.manual_seed(world.rank + 100 * turn)
        values = torch.randn(size).to(kind)
        each = [torch.empty_like(values) for _ in range(world.world_size)]
        dist.all_gather(each, values)
        shares = [one / world.world_size for one in each]
        expected = sum(shares[1:], start=shares[0])
        shared.average(values)
        assert torch.equal(values, expected), f"{size} {kind}"
    say("same")
    dist.destroy_process_group()
    return 0


def say(words: str) -> None:
    """Print a line with one write: several ranks print concurrently."""
    os.write(1, f"{words}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
