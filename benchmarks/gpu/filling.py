"""Search for the batch that fills a card, by doubling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FULL = 0.9


@dataclass(frozen=True, kw_only=True)
class Filled:
    """The largest batch found, its share of the card's memory, and the reason why it is not larger."""

    batch_size: int
    share_of_memory: float
    why: str


def fill(share_in_use: Callable[[int], float | None], first_batch: int, most_batch: int) -> Filled:
    """Double the batch until it uses 90% of the memory or does not fit.

    Args:
        share_in_use: share of the memory used while training with this batch; None: out of memory.

    Raises:
        RuntimeError: the first batch does not fit.
    """
    found: Filled | None = None
    batch_size = first_batch
    while batch_size <= most_batch:
        share = share_in_use(batch_size)
        if share is None:
            if found is None:
                raise RuntimeError(f"not even a batch of {first_batch} fits into the memory")
            return Filled(
                batch_size=found.batch_size,
                share_of_memory=found.share_of_memory,
                why="twice that is out of memory",
            )
        why = f"{FULL:.0%} of the memory is in use" if share >= FULL else "larger ones are not tried"
        found = Filled(batch_size=batch_size, share_of_memory=round(share, 3), why=why)
        if share >= FULL:
            return found
        batch_size *= 2
    assert found is not None
    return found
