"""Started by torchrun from a test: adds tensors up through shared memory and by gloo, and compares.

python -m tests.integration.sum_worker WHAT, where WHAT is `same`, `gone` or `late`.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

from trainers import distributed, shared_sum

SIZES = (1, 7, 1000, shared_sum.PIECE_BYTES // 4, shared_sum.PIECE_BYTES // 4 * 3 + 5)


def main() -> None:
    """Do what is asked for; say what came of it."""
    world = distributed.join("cpu")
    shared = shared_sum.create(world, 2.0)
    if shared is None:
        say("none")
    elif sys.argv[1] == "same":
        for turn, size in enumerate(SIZES * 20):
            kind = (torch.float32, torch.float64, torch.bfloat16)[turn % 3]
            torch.manual_seed(world.rank + 100 * turn)
            values = torch.randn(size).to(kind)
            each = [torch.empty_like(values) for _ in range(world.world_size)]
            dist.all_gather(each, values)
            expected = sum(each[1:], start=each[0])
            shared.add(values)
            assert torch.equal(values, expected), f"{size} {kind}"
        say("same")
    elif world.rank == 1:
        if sys.argv[1] == "late":
            time.sleep(6.0)
        os._exit(0)
    else:
        began = time.monotonic()
        try:
            shared.add(torch.ones(10))
        except RuntimeError as error:
            say(f"{error} after {time.monotonic() - began:.1f} s")
            os._exit(0)
    dist.destroy_process_group()


def say(words: str) -> None:
    """Print a line in one go: several ranks print at once."""
    os.write(1, f"{words}\n".encode())


if __name__ == "__main__":
    main()
