"""The ranks' heartbeats: a piece of memory that the supervisor makes and in which every rank has a place.

No disk has to do with it: a beat must cost nothing, and a full or slow disk must not look like a hang. A
beat says that the rank goes on, with what, and how many steps it has done. Whoever reads compares counts
by a clock of its own, so that neither the ranks' clocks nor a half-written place can deceive it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from trainers.machine import memory_file
from trainers.machine.memory_file import MemoryFile

ADDRESS = "TRAINERS_HEARTBEATS"

# What a rank may be doing, in words that fit into "at step 7, …".
DOING = (
    "starting",
    "building the job",
    "fetching data",
    "in forward and backward",
    "in the optimizer step",
    "exchanging reports with the other ranks",
    "evaluating",
    "making a sample",
    "saving",
    "ending",
    "waiting in the warm pool",
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

_COUNT, _PID, _STEP, _DOING, _ON_GPU, _ASKED, _ANSWERED, _ANSWER_BYTES = range(8)
_NUMBERS = 8
_PLACE_BYTES = _NUMBERS * 8
# What a rank may say of the collectives it is in; a few hundred bytes for each process group.
MAX_ANSWER_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A rank's newest beat; `step` is the last one it has done, `doing` a place in `DOING`.

    `is_on_gpu`: while it waits for its GPU, and so for others, it takes a whole core: that is no work.
    """

    count: int
    pid: int
    step: int
    doing: int
    is_on_gpu: bool = False

    @property
    def words(self) -> str:
        """Say what the rank was doing."""
        return DOING[self.doing] if self.doing < len(DOING) else DOING[STARTING]


class Board:
    """The supervisor's side: every rank's place, to be read."""

    def __init__(self, num_ranks: int) -> None:
        self._file = MemoryFile("heartbeats", num_ranks * (_PLACE_BYTES + MAX_ANSWER_BYTES))
        self._bytes = memoryview(self._file.map())
        self._numbers = self._bytes[: num_ranks * _PLACE_BYTES].cast("Q")
        self._num_asked = 0
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
        return Beat(
            count=numbers[_COUNT],
            pid=numbers[_PID],
            step=numbers[_STEP],
            doing=numbers[_DOING],
            is_on_gpu=bool(numbers[_ON_GPU]),
        )

    def ask(self) -> None:
        """Ask every rank which collectives it is in."""
        self._num_asked += 1
        for rank in range(self.num_ranks):
            self._numbers[rank * _NUMBERS + _ASKED] = self._num_asked

    def answer(self, rank: int) -> bytes | None:
        """Return what a rank says to the newest question; None: not yet, and perhaps never."""
        numbers = self._numbers[rank * _NUMBERS : (rank + 1) * _NUMBERS]
        if self._num_asked == 0 or numbers[_ANSWERED] != self._num_asked:
            return None
        room = _room_for_answer(self._bytes, self.num_ranks, rank)
        return bytes(room[: numbers[_ANSWER_BYTES]])


class Place:
    """A rank's side: its own place, to be written."""

    def __init__(self, address: str | None, rank: int) -> None:
        """Find this rank's place; without an address the beats go nowhere.

        Raises:
            OSError: when there is no board at this address.
        """
        if address is None:
            board, num_ranks, rank = memoryview(bytearray(_PLACE_BYTES + MAX_ANSWER_BYTES)), 1, 0
        else:
            board = memoryview(memory_file.map_file(address))
            num_ranks = len(board) // (_PLACE_BYTES + MAX_ANSWER_BYTES)
        self._numbers = board[rank * _PLACE_BYTES : (rank + 1) * _PLACE_BYTES].cast("Q")
        self._room = _room_for_answer(board, num_ranks, rank)
        self._numbers[_PID] = os.getpid()

    def beat(self, doing: int, step: int | None = None) -> None:
        """Say that this rank goes on."""
        if step is not None:
            self._numbers[_STEP] = step
        self._numbers[_DOING] = doing
        self._numbers[_COUNT] += 1

    @property
    def doing(self) -> int:
        """What the newest beat said."""
        return self._numbers[_DOING]

    def note_gpu(self) -> None:
        """Say that this rank drives a GPU."""
        self._numbers[_ON_GPU] = 1

    @property
    def is_asked(self) -> bool:
        """Whether the supervisor waits for an answer."""
        return self._numbers[_ASKED] != self._numbers[_ANSWERED]

    def answer(self, said: bytes) -> None:
        """Answer the supervisor's newest question; what is too long for its room is not said."""
        asked = self._numbers[_ASKED]
        said = said if len(said) <= MAX_ANSWER_BYTES else b""
        self._room[: len(said)] = said
        self._numbers[_ANSWER_BYTES] = len(said)
        self._numbers[_ANSWERED] = asked


def _room_for_answer(board: memoryview, num_ranks: int, rank: int) -> memoryview:
    start = num_ranks * _PLACE_BYTES + rank * MAX_ANSWER_BYTES
    return board[start : start + MAX_ANSWER_BYTES]


def can_be_watched() -> bool:
    """Tell whether this system has what the board needs: Linux does."""
    return memory_file.is_in_memory()
