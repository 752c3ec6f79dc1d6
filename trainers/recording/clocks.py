"""How far the clocks of machines are apart: pings between rank 0 and one rank of each other machine.

On one machine `time.monotonic` is one clock for all processes, so nothing has to be corrected there. Of
another machine the clock is read in the middle of a ping's way (Cristian, "Probabilistic clock
synchronization", 1989): the quickest ping counts, and half of its way bounds the error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainers.parallel.process_group import World

NUM_PINGS = 16


@dataclass(frozen=True, kw_only=True)
class Ping:
    """A message to another rank and back: sent and returned by our clock, answered by the other's."""

    sent_ns: int
    answered_ns: int
    returned_ns: int

    @property
    def took_ns(self) -> int:
        return self.returned_ns - self.sent_ns


@dataclass(frozen=True, kw_only=True)
class Skew:
    """By how much another clock is ahead of ours, and the most that this can be wrong."""

    ahead_ns: int = 0
    error_ns: int = 0


def skew_of(pings: Sequence[Ping]) -> Skew:
    """Return how far the clock that answered is ahead, by the quickest ping."""
    best = min(pings, key=lambda ping: ping.took_ns)
    middle_ns = (best.sent_ns + best.returned_ns) // 2
    return Skew(ahead_ns=best.answered_ns - middle_ns, error_ns=-(-best.took_ns // 2))


def measure(world: World, nodes: Sequence[int]) -> dict[int, Skew]:
    """Return, on rank 0, the skew of each machine's clock; every rank must call it.

    Args:
        nodes: the machine of each rank.
    """
    first_ranks = {node: rank for rank, node in reversed(list(enumerate(nodes)))}
    here = nodes[0]
    found = {here: Skew()}
    for node, rank in sorted(first_ranks.items()):
        if node == here:
            continue
        if world.is_main:
            found[node] = skew_of([_ping(world, rank) for _ in range(NUM_PINGS)])
        elif world.rank == rank:
            for _ in range(NUM_PINGS):
                _answer(world)
    return found


def _ping(world: World, rank: int) -> Ping:
    message = torch.zeros(1, dtype=torch.int64)
    sent_ns = time.monotonic_ns()
    dist.send(message, dst=rank, group=world.slow_group)
    dist.recv(message, src=rank, group=world.slow_group)
    return Ping(sent_ns=sent_ns, answered_ns=int(message.item()), returned_ns=time.monotonic_ns())


def _answer(world: World) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    dist.recv(message, src=0, group=world.slow_group)
    message[0] = time.monotonic_ns()
    dist.send(message, dst=0, group=world.slow_group)
