"""All-reduce between CPU ranks of one machine through shared memory.

gloo sends gradients through local sockets, which takes most of the time of a small model's step. This module
averages each bucket in chunks, one round per chunk:

1. Each rank writes its gradients, divided by the number of ranks, into its own memory file.
2. It writes one byte into a pipe to each other rank, then waits for one byte from each of them.
3. It sums the memory of all ranks in rank order, so that every rank gets the same bits.

The bytes in step 2 are a barrier. The memory file has two halves, used alternately, so one barrier per round
is enough: a rank overwrites a half only two rounds later. By then it has passed the barrier of the round in
between, which every rank enters only after it has finished reading that half. With a single half, a fast rank
could overwrite values that a slow rank still reads.

When a rank ends, its pipe ends close and the other ranks get an error immediately. No file remains on disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainers.files.plain_files import map_file
from trainers.machine import facilities
from trainers.machine.host import MemoryFile
from trainers.parallel.process_group import World, gather_json
from trainers.parallel.strategy import Round

# A large bucket is averaged chunk by chunk, so that the shared memory is small and stays in the CPU cache.
# Each chunk costs one barrier; the gradients of a small MLP, 1.08 MB, fit into one.
CHUNK_BYTES = 2**21
# Maximum number of ranks. With more ranks, each reads more from the others than gloo sends.
MAX_RANKS = 8

# Maximum timeout of `poll`: 24 days.
MAX_TIMEOUT_MS = 2**31 - 1

_HALVES = 2


class SharedSum:
    """One rank's memory file, its mappings of the other ranks' files, and a pipe to and from each other rank.

    Attributes:
        spent_s: total time in `average` so far.
        waited_s: the part of `spent_s` that this rank waited for other ranks.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self._rank = world.rank
        self._num_ranks = world.world_size
        self._timeout_ms = min(round(timeout_s * 1000), MAX_TIMEOUT_MS)
        self._memory = MemoryFile("gradients", _HALVES * CHUNK_BYTES)
        self._other_ranks = [rank for rank in range(world.world_size) if rank != world.rank]
        self._pipes = {rank: os.pipe() for rank in self._other_ranks}
        # Each rank creates the pipes that it reads from; `connect` opens the writing ends of the others.
        self._write_descriptors: dict[int, int] = {}
        self._read_descriptors = {rank: reading for rank, (reading, _) in self._pipes.items()}
        self._polls: dict[int, select.poll] = {}
        for rank, reading in self._read_descriptors.items():
            self._polls[rank] = select.poll()
            self._polls[rank].register(reading, select.POLLIN)
        self._regions: list[Tensor] = []
        self._half = 0
        self.spent_s = self.waited_s = 0.0

    def addresses(self) -> dict[str, Any]:
        """Return the paths by which the other ranks open this rank's memory and pipes.

        They are valid while this process lives.
        """
        pipes = {
            str(rank): facilities.path_of_descriptor(writing) for rank, (_, writing) in self._pipes.items()
        }
        return {"memory": self._memory.address, "pipes": pipes}

    def connect(self, addresses: list[dict[str, Any]]) -> None:
        """Open the memory and pipes of the other ranks.

        Raises:
            OSError: if one of them is on another machine, or access is denied.
        """
        for rank, address in enumerate(addresses):
            if rank == self._rank:
                mapped = self._memory.map()
            else:
                mapped = map_file(address["memory"])
                self._write_descriptors[rank] = os.open(
                    address["pipes"][str(self._rank)], os.O_WRONLY | os.O_CLOEXEC
                )
            self._regions.append(torch.frombuffer(mapped, dtype=torch.uint8).view(_HALVES, CHUNK_BYTES))

    def settle(self) -> None:
        """Close this rank's copies of the pipes' writing ends, after all ranks have connected.

        A read returns end-of-file only when no writer is left, so a copy here would hide a rank's end.
        """
        for _, writing in self._pipes.values():
            os.close(writing)
        self._pipes.clear()

    def average(self, values: Tensor) -> None:
        """Replace a flat tensor by its mean over the ranks. Every rank must call it with the same shape.

        Each rank's values are divided first and then summed, as in DDP: the result is bit-equal to gloo's.

        Raises:
            RuntimeError: if another rank has ended, or does not arrive before the timeout.
        """
        started_at = time.perf_counter()
        for chunk in values.split(CHUNK_BYTES // values.element_size()):
            shared = self._write(chunk)
            self._barrier()
            _sum(shared, chunk)
        self.spent_s += time.perf_counter() - started_at

    def average_timed(self, values: Tensor) -> list[Round]:
        """Do the same as `average`, and return the times of each chunk."""
        started_at = time.perf_counter()
        now, rounds = time.monotonic_ns, []
        for chunk in values.split(CHUNK_BYTES // values.element_size()):
            began_ns = now()
            shared = self._write(chunk)
            written_ns = now()
            self._barrier()
            met_ns = now()
            _sum(shared, chunk)
            rounds.append(Round(began_ns, written_ns, met_ns, now(), chunk.nbytes))
        self.spent_s += time.perf_counter() - started_at
        return rounds

    def close(self) -> None:
        """Close memory and pipes; a rank that waits for this one then gets an error."""
        self._memory.close()
        for descriptor in (*self._write_descriptors.values(), *self._read_descriptors.values()):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _write(self, chunk: Tensor) -> list[Tensor]:
        """Write this rank's share of the mean; return views of the shares of all ranks, in rank order."""
        # Alternate the halves: slower ranks may still read the other one (see the module's docstring).
        shared = [region[self._half].view(chunk.dtype)[: len(chunk)] for region in self._regions]
        self._half = (self._half + 1) % _HALVES
        torch.div(chunk, self._num_ranks, out=shared[self._rank])
        return shared

    def _barrier(self) -> None:
        """Announce that this rank has written its share, and wait for all other ranks."""
        try:
            for rank in self._other_ranks:
                os.write(self._write_descriptors[rank], b".")
        except OSError as error:
            raise RuntimeError(f"connection closed by peer: rank {rank} has gone") from error
        started_at = time.perf_counter()
        for rank in self._other_ranks:
            self._wait_for(rank)
        self.waited_s += time.perf_counter() - started_at

    def _wait_for(self, rank: int) -> None:
        started_at = time.monotonic()
        while True:
            remaining_ms = self._timeout_ms - round(1000 * (time.monotonic() - started_at))
            if remaining_ms <= 0 or not self._polls[rank].poll(remaining_ms):
                raise RuntimeError(
                    f"timed out waiting {self._timeout_ms} ms for the gradients of rank {rank}"
                )
            if os.read(self._read_descriptors[rank], 1):
                return
            raise RuntimeError(f"connection closed by peer: rank {rank} has gone")


def _sum(shared: list[Tensor], chunk: Tensor) -> None:
    torch.add(shared[0], shared[1], out=chunk)
    for region in shared[2:]:
        chunk.add_(region)


def create(world: World, timeout_s: float) -> SharedSum | None:
    """Connect all ranks; return None on every rank if it is not possible. Every rank must call it."""
    is_applicable = (
        world.device.type == "cpu"
        and 1 < world.world_size <= MAX_RANKS
        # On another machine, the same /proc path would belong to an unrelated process.
        and os.environ.get("LOCAL_WORLD_SIZE") == str(world.world_size)
        and facilities.has_memory_files()
    )
    if not is_applicable:
        return None
    shared_sum = SharedSum(world, timeout_s)
    addresses = gather_json(shared_sum.addresses(), world.slow_group)
    problem = _errno_of(lambda: shared_sum.connect(addresses))
    # All ranks must make the same decision, and `settle` may run only after every rank has connected.
    is_possible = not any(gather_json(problem, world.slow_group))
    if is_possible:
        shared_sum.settle()
        return shared_sum
    shared_sum.close()
    return None


def _errno_of(connect: Callable[[], None]) -> int:
    """Return the errno with which connecting failed, or 0."""
    try:
        connect()
    except OSError as error:
        return error.errno or errno.EIO
    return 0
