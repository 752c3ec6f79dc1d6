"""The ranks' heartbeats: a piece of memory that the supervisor makes and in which every rank has a place.

No disk has to do with it: a beat must cost nothing, and a full or slow disk must not look like a hang. A
beat says that the rank goes on, with what, and how many steps it has done. Whoever reads compares counts
by a clock of its own, so that neither the ranks' clocks nor a half-written place can deceive it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainers.contract import memory_file
from trainers.contract.memory_file import MemoryFile

ADDRESS = "TRAINERS_HEARTBEATS"

# What a rank may be doing, in words that fit into "at step 7, …".
DOING = (
    "starting",
    "building the job",
    "fetching data",
    "going forward and backward",
    "taking a step",
    "comparing notes with the other ranks",
    "evaluating",
    "showing what the model says",
    "saving",
    "ending",
    "standing by for a run",
)
(
    STARTING,
    BUILDING,
    FETCHING,
    COMPUTING,
    STEPPING,
    REPORTING,
    EVALUATING,
    SAMPLING,
    SAVING,
    ENDING,
    STANDING_BY,
) = range(len(DOING))

# A rank that computes or reads without a beat is not idle; but nobody waits for it for ever.
BUSY_FACTOR = 30

_COUNT, _PID, _STEP, _DOING = range(4)
_NUMBERS = 8
_PLACE_BYTES = _NUMBERS * 8


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A rank's newest beat; `step` is the last one it has done, `doing` a place in `DOING`."""

    count: int
    pid: int
    step: int
    doing: int

    @property
    def words(self) -> str:
        """Say what the rank was doing."""
        return DOING[self.doing] if self.doing < len(DOING) else DOING[STARTING]


class Board:
    """The supervisor's side: every rank's place, to be read."""

    def __init__(self, num_ranks: int) -> None:
        self._file = MemoryFile("heartbeats", num_ranks * _PLACE_BYTES)
        self._numbers = memoryview(self._file.map()).cast("Q")
        self.num_ranks = num_ranks

    @property
    def address(self) -> str:
        """Where the ranks find it, as long as this process lives; it is gone with it."""
        return self._file.address

    def read(self, rank: int) -> Beat | None:
        """Return a rank's newest beat; None before its first."""
        start = rank * _NUMBERS
        numbers = self._numbers[start : start + _NUMBERS]
        if numbers[_COUNT] == 0:
            return None
        return Beat(count=numbers[_COUNT], pid=numbers[_PID], step=numbers[_STEP], doing=numbers[_DOING])


class Place:
    """A rank's side: its own place, to be written."""

    def __init__(self, address: str | None, rank: int) -> None:
        """Find this rank's place; without an address the beats go nowhere.

        Raises:
            OSError: when there is no board at this address.
        """
        if address is None:
            self._numbers = memoryview(bytearray(_PLACE_BYTES)).cast("Q")
        else:
            board = memoryview(memory_file.map_file(address)).cast("Q")
            self._numbers = board[rank * _NUMBERS : (rank + 1) * _NUMBERS]
        self._numbers[_PID] = os.getpid()

    def beat(self, doing: int, step: int | None = None) -> None:
        """Say that this rank goes on."""
        if step is not None:
            self._numbers[_STEP] = step
        self._numbers[_DOING] = doing
        self._numbers[_COUNT] += 1


def can_be_watched() -> bool:
    """Tell whether this system has what the board needs: Linux does."""
    return memory_file.is_in_memory()
