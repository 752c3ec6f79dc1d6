"""The batch that fills a card, found by doubling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FULL = 0.9


@dataclass(frozen=True, kw_only=True)
class Filled:
    """The largest batch found, the share of the card's memory in use with it, and why it is not larger."""

    batch_size: int
    share_of_memory: float
    why: str


def fill(share_in_use: Callable[[int], float | None], first_batch: int, most_batch: int) -> Filled:
    """Double the batch until the memory is 90% full or does not suffice.

    Args:
        share_in_use: of the memory, while training with this batch; None: out of memory.

    Raises:
        RuntimeError: when not even the first batch fits.
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
