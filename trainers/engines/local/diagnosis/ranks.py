"""What can be seen of the ranks of a run from where its supervisor is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats.heartbeat_board import Beat, Board
from trainers.engines.local.diagnosis import stacks
from trainers.engines.local.diagnosis.stacks import Stacks
from trainers.machine import effort
from trainers.machine.effort import Effort


class Ranks(ABC):
    """The ranks of one run, wherever they are."""

    num_ranks: int
    num_machines = 1

    @abstractmethod
    def beat(self, rank: int) -> Beat | None:
        """Return a rank's newest heartbeat; None before its first."""

    @abstractmethod
    def effort(self, rank: int) -> Effort | None:
        """Return what a rank's process has used so far; None when it is gone."""

    @abstractmethod
    def ask(self) -> None:
        """Ask every rank which collectives it is in."""

    @abstractmethod
    def answer(self, rank: int) -> bytes | None:
        """Return what a rank says to the newest question; None: not yet, and perhaps never."""

    @abstractmethod
    def stacks(self, rank: int) -> Stacks:
        """Return where the threads of a rank stand, after the newest question; takes some seconds."""

    @abstractmethod
    def stacks_at_once(self, rank: int) -> Stacks | None:
        """Return where they stand as it can be seen without the rank's help; None where it cannot."""

    def host(self, rank: int) -> str:
        """Return the name of a rank's machine; empty where there is only one."""
        del rank
        return ""

    def lost_node(self) -> str:
        """Say which machine is not heard any more; empty while all are."""
        return ""

    def cut_off(self) -> str:
        """Return which machines cannot reach each other, as they have found out; empty while all can."""
        return ""

    def why_ended(self, rank: int) -> str:
        """Return why the launcher of a rank's machine has killed it; empty where it has not."""
        del rank
        return ""


class LocalRanks(Ranks):
    """Those of this machine."""

    def __init__(self, run: RunDirectory, board: Board) -> None:
        self._run = run
        self._board = board
        self.num_ranks = board.num_ranks

    def beat(self, rank: int) -> Beat | None:
        """Read it from the board."""
        return self._board.read(rank)

    def effort(self, rank: int) -> Effort | None:
        """Look at its process."""
        beat = self._board.read(rank)
        return None if beat is None else effort.sample(beat.pid)

    def ask(self) -> None:
        """Ask on the board."""
        self._board.ask()

    def answer(self, rank: int) -> bytes | None:
        """Read it from the board."""
        return self._board.answer(rank)

    def stacks(self, rank: int) -> Stacks:
        """Read them from outside, or have the rank tell them."""
        beat = self._board.read(rank)
        if beat is None:
            return Stacks(threads=(), source="It has not begun.")
        return stacks.read(beat.pid, self._run.rank_log(rank))

    def stacks_at_once(self, rank: int) -> Stacks | None:
        """Read them from outside."""
        beat = self._board.read(rank)
        return None if beat is None else stacks.read_at_once(beat.pid)
