"""When a run hangs: the rule, as arithmetic over heartbeats, clocks and what processes do.

A rank is silent while it does not beat, and idle while it is silent and its process (with its children)
neither computes, nor reads or writes, nor waits for a disk. Then:

- a rank whose process was stopped (SIGSTOP) and is silent for the limit: a hang;
- every rank idle for the limit, or silent for thirty times the limit whatever it does: a hang;
- some ranks idle for the limit while others are alive: they may only be waiting for those. Where they
  stand decides, so the stacks have to be looked at;
- every rank silent for the limit, and they drive GPUs: a rank that waits for its GPU takes a whole core, so
  that what the processes do tells nothing. They hang where a collective cannot end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainers.engines.heartbeats.heartbeat_board import BUILDING, BUSY_FACTOR, ENDING, STARTING, Beat
from trainers.machine.effort import Effort

# Between two looks more time than this may be ours (stopped, a suspended machine): no rank's silence.
LONGEST_INTERVAL_S = 2.0
# A rank that has done nothing for so long is not busy.
BUSY_UNTIL_S = 1.0
# One that has beaten within so long gets on, though it may sleep between its beats, as a GPU's host does. A
# run that hangs when somebody wants it to stop is forced as early as without that: with
# `escalation.LIFE_GRACE_S` it makes up `escalation.STOP_GRACE_S`.
GETS_ON_UNTIL_S = 5.0
# A GPU's long steps take about equally long, so its host is given more than the last one took.
LAST_GAP_FACTOR = 1.5
# Of a core; a rank that only waits takes one or two hundredths.
WORKING_SHARE = 0.15
# The same, with the time its threads stood in line for a core: one that computes wants one all the time.
WANTING_SHARE = 0.6
WORKING_BYTES_PER_S = 256 * 1024


@dataclass
class RankWatch:
    """One rank as it was at the last look, and for how long nothing has come from it.

    Attributes:
        host: the name of its machine, where there are several.
    """

    rank: int
    host: str = ""
    beat: Beat | None = None
    effort: Effort | None = None
    silent_s: float = 0.0
    idle_s: float = 0.0
    last_gap_s: float = 0.0
    is_gone: bool = False

    def update(self, beat: Beat | None, effort: Effort | None, passed_s: float) -> None:
        """Take a look after `passed_s`; effort is None where it was not asked for, or there is none."""
        before, self.effort = self.effort, effort
        if beat is not None and (self.beat is None or beat.count != self.beat.count):
            self.beat = beat
            self.last_gap_s, self.silent_s, self.idle_s = self.silent_s, 0.0, 0.0
            self.is_gone = False
            return
        self.silent_s += passed_s
        self.idle_s = 0.0 if _is_at_work(before, effort, passed_s) else self.idle_s + passed_s

    @property
    def is_stopped(self) -> bool:
        return self.effort is not None and self.effort.is_stopped

    @property
    def gets_on(self) -> bool:
        """Tell whether it has beaten a short while ago, or is no later than its GPU's last long step was."""
        gap_s = self.last_gap_s if self.is_on_gpu else 0.0
        return self.beat is not None and self.silent_s < max(GETS_ON_UNTIL_S, LAST_GAP_FACTOR * gap_s)

    @property
    def is_on_gpu(self) -> bool:
        return self.beat is not None and self.beat.is_on_gpu

    @property
    def counts(self) -> bool:
        """Tell whether it still takes part."""
        return not self.is_gone and (self.beat is None or self.beat.doing != ENDING)

    @property
    def is_building(self) -> bool:
        return self.beat is None or self.beat.doing in (STARTING, BUILDING)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Ranks that may hang; it is certain, or their stacks must say so.

    `may_be_deadlock`: every rank is silent on its GPU, and their collectives must say so.
    """

    ranks: tuple[int, ...]
    is_certain: bool
    may_be_deadlock: bool = False


def suspect(watches: Sequence[RankWatch], limit_s: float) -> Suspicion | None:
    """Say which ranks hang or may hang; None while all is well."""
    taking_part = [watch for watch in watches if watch.counts]
    if all(watch.beat is None for watch in taking_part):
        return None  # torchrun has not started them yet
    stopped = [watch.rank for watch in taking_part if watch.is_stopped and watch.silent_s >= limit_s]
    if stopped:
        return Suspicion(ranks=tuple(stopped), is_certain=True)
    idle = [watch.rank for watch in taking_part if watch.idle_s >= limit_s]
    everybody = tuple(watch.rank for watch in taking_part)
    # Hosts sleep while their GPUs are at work on a long step, so there idleness alone says nothing.
    may_wait_for_gpus = all(watch.is_on_gpu and not watch.is_building for watch in taking_part)
    if len(idle) == len(taking_part) and not may_wait_for_gpus:
        return Suspicion(ranks=everybody, is_certain=True)
    if all(watch.silent_s >= BUSY_FACTOR * limit_s for watch in taking_part):
        return Suspicion(ranks=everybody, is_certain=True)
    # While a job is built, ranks wait for each other in many ways.
    doubtful = [rank for rank in idle if not watches[rank].is_building]
    may_be_deadlock = all(watch.silent_s >= limit_s and watch.is_on_gpu for watch in taking_part)
    if not doubtful and not may_be_deadlock:
        return None
    return Suspicion(ranks=tuple(doubtful), is_certain=False, may_be_deadlock=may_be_deadlock)


def busy(watches: Sequence[RankWatch]) -> list[RankWatch]:
    """Return the ranks that work, or beat a while ago; none where one was stopped: the others wait."""
    taking_part = [watch for watch in watches if watch.counts]
    if any(watch.is_stopped for watch in taking_part):
        return []
    return [
        watch
        for watch in taking_part
        if watch.beat is not None and (watch.gets_on or watch.idle_s < BUSY_UNTIL_S)
    ]


def counted_s(passed_s: float) -> float:
    """Return how much of the time between two looks counts: not what whoever looks has slept itself."""
    return min(max(passed_s, 0.0), LONGEST_INTERVAL_S)


def _is_at_work(before: Effort | None, now: Effort | None, passed_s: float) -> bool:
    if now is None or now.is_stopped:
        return False
    if before is None or now.waits_for_disk:
        return True  # the first look at it says nothing yet
    cpu_s, io_bytes = now.cpu_s - before.cpu_s, now.io_bytes - before.io_bytes
    wanted_s = now.wanted_s - before.wanted_s
    if cpu_s < 0 or io_bytes < 0:
        return True  # a child of it has ended
    return (
        cpu_s >= WORKING_SHARE * passed_s
        or wanted_s >= WANTING_SHARE * passed_s
        or io_bytes >= WORKING_BYTES_PER_S * passed_s
    )
