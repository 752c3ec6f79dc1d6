"""Adds gradients up between CPU ranks of one machine, through memory they share.

gloo sends them through sockets of the machine itself, which takes most of a small model's step. Here every
rank writes its own into memory that the others read, says so over a pipe, waits for the others, and adds up
in the order of the ranks, so that all get the same bits.

A rank that goes closes its pipes: the others hear it at once. Nothing of it is left on any disk.
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

from trainers.machine import host
from trainers.machine.host import MemoryFile
from trainers.parallel.process_group import World, gather_json
from trainers.parallel.strategy import Round

# Large buckets go in pieces: what is shared stays small, and in the processor's cache. For each piece the
# ranks wait for each other; the gradients of a small MLP, 1.08 MB, are one.
PIECE_BYTES = 2**21
# With more ranks each one would read more than gloo sends.
MOST_RANKS = 8

# What `poll` can be told: 24 days.
LONGEST_MS = 2**31 - 1

_HALVES = 2


class SharedSum:
    """One rank's part: its own memory, the others', and a pipe to and from each of them.

    Attributes:
        spent_s: all the time that `average` has taken so far.
        waited_s: of it, waiting for other ranks.
    """

    def __init__(self, world: World, timeout_s: float) -> None:
        self._rank = world.rank
        self._num_ranks = world.world_size
        self._timeout_ms = min(round(timeout_s * 1000), LONGEST_MS)
        self._memory = MemoryFile("gradients", _HALVES * PIECE_BYTES)
        self._others = [rank for rank in range(world.world_size) if rank != world.rank]
        self._pipes = {rank: os.pipe() for rank in self._others}
        self._to: dict[int, int] = {}
        self._from = {rank: reading for rank, (reading, _) in self._pipes.items()}
        self._polls: dict[int, select.poll] = {}
        for rank, reading in self._from.items():
            self._polls[rank] = select.poll()
            self._polls[rank].register(reading, select.POLLIN)
        self._regions: list[Tensor] = []
        self._turn = 0
        self.spent_s = self.waited_s = 0.0

    def addresses(self) -> dict[str, Any]:
        """Return where the others find this rank's memory and its pipes, as long as this process lives."""
        own = f"/proc/{os.getpid()}/fd"
        pipes = {str(rank): f"{own}/{writing}" for rank, (_, writing) in self._pipes.items()}
        return {"memory": self._memory.address, "pipes": pipes}

    def connect(self, addresses: list[dict[str, Any]]) -> None:
        """Open what the others have.

        Raises:
            OSError: when one of them is on another machine, or may not be looked at.
        """
        for rank, address in enumerate(addresses):
            if rank == self._rank:
                mapped = self._memory.map()
            else:
                mapped = host.map_file(address["memory"])
                self._to[rank] = os.open(address["pipes"][str(self._rank)], os.O_WRONLY | os.O_CLOEXEC)
            self._regions.append(torch.frombuffer(mapped, dtype=torch.uint8).view(_HALVES, PIECE_BYTES))

    def settle(self) -> None:
        """Close this rank's own ends of the pipes the others have opened: so it hears when they go."""
        for _, writing in self._pipes.values():
            os.close(writing)
        self._pipes.clear()

    def average(self, values: Tensor) -> None:
        """Replace a flat tensor by its mean over the ranks; every rank must call it with one of this shape.

        As DDP does it, each is divided first, then added up: the bits are those of gloo.

        Raises:
            RuntimeError: when another rank has gone, or does not come in time.
        """
        began = time.perf_counter()
        for piece in values.split(PIECE_BYTES // values.element_size()):
            shared = self._write(piece)
            self._meet()
            _add_up(shared, piece)
        self.spent_s += time.perf_counter() - began

    def average_timed(self, values: Tensor) -> list[Round]:
        """Do what `average` does, and return when each piece came how far."""
        began = time.perf_counter()
        now, rounds = time.monotonic_ns, []
        for piece in values.split(PIECE_BYTES // values.element_size()):
            began_ns = now()
            shared = self._write(piece)
            written_ns = now()
            self._meet()
            met_ns = now()
            _add_up(shared, piece)
            rounds.append(
                Round(
                    num_bytes=piece.nbytes,
                    began_ns=began_ns,
                    written_ns=written_ns,
                    met_ns=met_ns,
                    ended_ns=now(),
                )
            )
        self.spent_s += time.perf_counter() - began
        return rounds

    def close(self) -> None:
        """Give the pipes back: whoever waits for this rank hears that it has gone."""
        self._memory.close()
        for descriptor in (*self._to.values(), *self._from.values()):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _write(self, piece: Tensor) -> list[Tensor]:
        """Write this rank's share of the mean, and return where those of all ranks lie."""
        # In turns: who still reads the one half is not disturbed by who writes the other.
        shared = [region[self._turn].view(piece.dtype)[: len(piece)] for region in self._regions]
        self._turn = (self._turn + 1) % _HALVES
        torch.div(piece, self._num_ranks, out=shared[self._rank])
        return shared

    def _meet(self) -> None:
        """Say that this rank's part is written, and wait until everybody's is."""
        try:
            for rank in self._others:
                os.write(self._to[rank], b".")
        except OSError as error:
            raise RuntimeError(f"connection closed by peer: rank {rank} has gone") from error
        since = time.perf_counter()
        for rank in self._others:
            self._wait_for(rank)
        self.waited_s += time.perf_counter() - since

    def _wait_for(self, rank: int) -> None:
        since = time.monotonic()
        while True:
            left_ms = self._timeout_ms - round(1000 * (time.monotonic() - since))
            if left_ms <= 0 or not self._polls[rank].poll(left_ms):
                raise RuntimeError(
                    f"timed out waiting {self._timeout_ms} ms for the gradients of rank {rank}"
                )
            if os.read(self._from[rank], 1):
                return
            raise RuntimeError(f"connection closed by peer: rank {rank} has gone")


def _add_up(shared: list[Tensor], piece: Tensor) -> None:
    torch.add(shared[0], shared[1], out=piece)
    for other in shared[2:]:
        piece.add_(other)


def create(world: World, timeout_s: float) -> SharedSum | None:
    """Connect all ranks; None, on all of them, where it is not for them. Every rank must call it."""
    is_for_them = (
        world.device.type == "cpu"
        and 1 < world.world_size <= MOST_RANKS
        # Elsewhere the same address is somebody else's.
        and os.environ.get("LOCAL_WORLD_SIZE") == str(world.world_size)
        and host.is_in_memory()
    )
    if not is_for_them:
        return None
    mine = SharedSum(world, timeout_s)
    there = gather_json(mine.addresses(), world.slow_group)
    problem = _problem_of(lambda: mine.connect(there))
    is_possible = not any(gather_json(problem, world.slow_group))
    if is_possible:
        mine.settle()
        return mine
    mine.close()
    return None


def _problem_of(connect: Callable[[], None]) -> int:
    """Return the number of the error that keeps this rank from it; 0 where there is none."""
    try:
        connect()
    except OSError as error:
        return error.errno or errno.EIO
    return 0
