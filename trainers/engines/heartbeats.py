"""The supervisor's side of the ranks' heartbeats, and the comparison of their answers.

`HeartbeatMemory` reads the slots that the ranks write (`contract/heartbeats.py`). The second half of the file
compares the ranks' answers, to find the rank that blocks a collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainers.contract import heartbeats as layout
from trainers.contract.heartbeats import MAX_ANSWER_BYTES, Group, Heartbeat, PendingCollective, RankAnswer
from trainers.machine.host import MemoryFile


class HeartbeatMemory:
    """The supervisor's side: reads the slot of every rank."""

    def __init__(self, num_ranks: int) -> None:
        self._file = MemoryFile("heartbeats", num_ranks * (layout.SLOT_BYTES + MAX_ANSWER_BYTES))
        self._bytes = memoryview(self._file.map())
        self._numbers = self._bytes[: num_ranks * layout.SLOT_BYTES].cast("Q")
        self._num_requests = 0
        self.num_ranks = num_ranks

    @property
    def address(self) -> str:
        """Path at which ranks open the memory file, valid while this process lives."""
        return self._file.address

    def read(self, rank: int) -> Heartbeat | None:
        """Return a rank's latest heartbeat; None before its first."""
        start = rank * layout.NUMBERS
        numbers = self._numbers[start : start + layout.NUMBERS]
        if numbers[layout.COUNT] == 0:
            return None
        return Heartbeat(
            count=numbers[layout.COUNT],
            pid=numbers[layout.PID],
            step=numbers[layout.STEP],
            doing=numbers[layout.ACTIVITY],
            is_on_gpu=bool(numbers[layout.ON_GPU]),
        )

    def ask(self) -> None:
        """Ask every rank for the collectives it is in. Ranks poll the request number."""
        self._num_requests += 1
        for rank in range(self.num_ranks):
            self._numbers[rank * layout.NUMBERS + layout.REQUESTED] = self._num_requests

    def answer(self, rank: int) -> bytes | None:
        """Return a rank's answer to the latest request, or None. A stuck rank never answers."""
        numbers = self._numbers[rank * layout.NUMBERS : (rank + 1) * layout.NUMBERS]
        if self._num_requests == 0 or numbers[layout.ANSWERED] != self._num_requests:
            return None
        buffer = layout.answer_buffer(self._bytes, self.num_ranks, rank)
        return bytes(buffer[: numbers[layout.ANSWER_SIZE]])


# Process groups of each rank that has answered.
Views = Mapping[int, Sequence[Group]]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A collective that cannot finish: the ranks inside it, and the ranks that never entered it."""

    waiting: Mapping[int, PendingCollective]
    missing: tuple[int, ...]

    @property
    def is_mismatch(self) -> bool:
        """True if the ranks inside are in different collectives."""
        first, *other_collectives = self.waiting.values()
        return not all(first.fits(other) for other in other_collectives)

    def __str__(self) -> str:
        if self.is_mismatch:
            return "; ".join(
                f"rank {rank} is in {collective}" for rank, collective in sorted(self.waiting.items())
            )
        collective = next(iter(self.waiting.values()))
        verb = "waits" if len(self.waiting) == 1 else "wait"
        return (
            f"{_ranks_text(self.missing)} never entered {collective}, "
            f"in which {_ranks_text(self.waiting)} {verb}"
        )


def ranks_behind_on_gpu(answers: Mapping[int, RankAnswer]) -> tuple[int, ...]:
    """Return the ranks whose GPUs have computed fewer gradients than other GPUs."""
    num_done = {
        rank: answer.gradients_done for rank, answer in answers.items() if answer.gradients_done is not None
    }
    return tuple(sorted(rank for rank, num in num_done.items() if num < max(num_done.values())))


def gaps(views: Views) -> tuple[Gap, ...]:
    """Return the collectives that cannot finish in the current state.

    Ranks are compared by the sequence number that torch gives each collective of a process group: the lowest
    unfinished number blocks the group, and a rank whose latest number is lower has not entered it. A rank
    that did not answer is not reported as missing.
    """
    result = []
    for name, ranks in sorted({(group.name, group.ranks) for groups in views.values() for group in groups}):
        inside = {
            rank: next((group for group in views[rank] if (group.name, group.ranks) == (name, ranks)), None)
            for rank in ranks
            if rank in views
        }
        unfinished = {rank: group.unfinished for rank, group in inside.items() if group and group.unfinished}
        if not unfinished:
            continue
        number = min(collective.number for collective in unfinished.values())
        gap = Gap(
            waiting={
                rank: collective for rank, collective in unfinished.items() if collective.number == number
            },
            missing=tuple(rank for rank, group in inside.items() if _latest_number(group) < number),
        )
        if gap.missing or gap.is_mismatch:
            result.append(gap)
    return tuple(result)


def is_in_collective(rank: int, views: Views) -> bool:
    """True if the rank has entered a collective and not left it."""
    return any(group.unfinished is not None for group in views.get(rank, ()))


def blamed_ranks(gaps: Sequence[Gap]) -> tuple[int, ...]:
    """Return the minority of ranks that block the majority; empty without a majority."""
    guilty: set[int] = set()
    for gap in gaps:
        if not gap.is_mismatch:
            guilty.update(gap.missing if len(gap.missing) < len(gap.waiting) else ())
            continue
        majority = max(gap.waiting.values(), key=lambda collective: _num_fitting(collective, gap))
        if 2 * _num_fitting(majority, gap) > len(gap.waiting):
            guilty.update(rank for rank, collective in gap.waiting.items() if not collective.fits(majority))
    return tuple(sorted(guilty))


def _num_fitting(collective: PendingCollective, gap: Gap) -> int:
    return sum(collective.fits(other) for other in gap.waiting.values())


def _latest_number(group: Group | None) -> int:
    return -1 if group is None or group.newest is None else group.newest.number


def _ranks_text(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"
