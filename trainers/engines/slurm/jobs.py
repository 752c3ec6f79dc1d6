"""A person's jobs as a list shows them: what each does or waits for, its place, and when it may start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from trainers.engines.slurm.remembered import SlurmError

# The name is last: it may have separators in it.
COLUMNS = ("%A", "%T", "%r", "%N", "%P", "%D", "%V", "%S", "%j")
PENDING_COLUMNS = ("%A", "%P", "%Q")
START_COLUMNS = ("%A", "%S")
# Seconds since 1970: nobody has to know the controller's time zone.
TIMES = {"SLURM_TIME_FORMAT": "%s"}

FIRST_AGAIN_S = 10.0
MOST_AGAIN_S = 900.0
MOST_ESTIMATES = 200

Answer = TypeVar("Answer")

_STATES = {
    "PENDING": "waits",
    "CONFIGURING": "its nodes get ready",
    "RUNNING": "runs",
    "COMPLETING": "ends",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "PREEMPTED": "makes room for another",
    "REQUEUED": "waits again",
    "REQUEUE_HOLD": "is held",
    "SPECIAL_EXIT": "is held",
    "RESIZING": "changes its size",
    "SIGNALING": "is told something",
    "STAGE_OUT": "its files are copied back",
}


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """One job of the person, with what a list needs.

    Attributes:
        starts_unix_s: when it has begun; of one that waits, when Slurm thinks that it will, if it does.
    """

    number: str
    state: str
    reason: str
    nodes: str
    partition: str
    num_nodes: int
    submitted_unix_s: float | None
    starts_unix_s: float | None
    name: str


def read(rows: Iterable[Sequence[str]]) -> list[ListedJob]:
    """Return the jobs of squeue's rows; what does not begin with a number is part of a name."""
    return [
        ListedJob(
            number=number,
            state=state,
            reason=reason,
            nodes=nodes,
            partition=partition,
            num_nodes=int(count) if count.isdecimal() else 1,
            submitted_unix_s=unix_s(submitted),
            starts_unix_s=unix_s(starts),
            name=name,
        )
        for number, state, reason, nodes, partition, count, submitted, starts, name in rows
        if number.isdecimal()
    ]


def state_in_words(state: str) -> str:
    """Return what a job does, as a verb."""
    return _STATES.get(state, state.replace("_", " ").lower())


def unix_s(text: str) -> float | None:
    """Return a time of Slurm's; None where it does not know one."""
    text = text.strip()
    if text.isdecimal():
        return float(text) or None
    try:
        # An old Slurm, or one reached through SSH, writes the time of its own zone: taken to be this one's.
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def places(rows: Iterable[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Return the place of each waiting job in its partition, 1 being the next, and how many wait there."""
    by_partition: dict[str, list[tuple[int, int, str]]] = {}
    for number, partition, priority in rows:
        if number.isdecimal() and priority.isdecimal():
            by_partition.setdefault(partition, []).append((-int(priority), int(number), number))
    return {
        number: (place, len(waiting))
        for waiting in by_partition.values()
        for place, (_, _, number) in enumerate(sorted(waiting), 1)
    }


@dataclass
class _Known(Generic[Answer]):
    pause_s: float
    next_s: float = 0.0
    answer: Answer | None = None
    error: SlurmError | None = None


@dataclass
class Estimates(Generic[Answer]):
    """Answers about single jobs, asked for ever less often, because each costs the controller much.

    Args:
        ask: returns the answer for one job, None where Slurm has none; raises SlurmError.
        first_again_s: from the first question to the second; each later pause is twice as long.
    """

    ask: Callable[[str], Answer | None]
    clock: Callable[[], float] = time.monotonic
    first_again_s: float = FIRST_AGAIN_S
    _known: dict[str, _Known[Answer]] = field(default_factory=dict)

    def of(self, number: str) -> Answer | None:
        """Return the answer for a job, as of the last question.

        Raises:
            SlurmError: when Slurm did not answer it.
        """
        known = self._known.setdefault(number, _Known(pause_s=self.first_again_s))
        if (now := self.clock()) >= known.next_s:
            known.next_s, known.pause_s = now + known.pause_s, min(2 * known.pause_s, MOST_AGAIN_S)
            try:
                known.answer, known.error = self.ask(number), None
            except SlurmError as error:
                known.answer, known.error = None, error
        while len(self._known) > MOST_ESTIMATES:
            del self._known[next(iter(self._known))]
        if known.error is not None:
            raise SlurmError(str(known.error))
        return known.answer


Places = Mapping[str, tuple[int, int]]
