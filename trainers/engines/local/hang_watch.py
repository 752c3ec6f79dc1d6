"""Hang watch: detects hanging ranks and explains where they wait.

Detection has three stages, from cheap to expensive:

1. About once a second, `RankWatch.update` reads each rank's heartbeat. A rank is *silent* until its counter
   changes. After `QUIET_FOR_S` of silence its process is sampled, too: a silent rank is *idle* if it does not
   compute, wait for a core, or do I/O.
2. `find_suspicion` is a pure rule over these times and `hang_limit_s`. Some suspicions are certain; others
   must be confirmed by the stacks or the collectives of the ranks.
3. `HangWatch._examine` asks every rank for its collectives and reads its stacks. `blocking_ranks` then names
   the ranks that block the run. Without a blocking rank there is no hang.

Ranks on a GPU need their own rules. A rank that waits for its GPU may spin, which looks like work, or sleep
although its GPU works. CPU time therefore proves nothing, and the collectives decide.

Only the time that this process has observed counts (`counted_s`): a suspended machine or supervisor makes no
rank look silent. The wall clock is not used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.heartbeats import (
    BUILDING,
    BUSY_FACTOR,
    ENDING,
    STARTING,
    Heartbeat,
    RankAnswer,
    from_bytes,
)
from trainers.contract.rundir import RunDirectory
from trainers.engines import heartbeats
from trainers.engines.heartbeats import Gap, Views
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stacks import Ranks, Stacks
from trainers.machine.os_errors import explain
from trainers.machine.processes import Effort

# The maximum time counted between two checks. More may be this process's own pause (SIGSTOP, a suspended
# machine), which says nothing about the ranks.
MAX_INTERVAL_S = 2.0
# For a stop request: a rank that has been idle for this long is not busy.
BUSY_UNTIL_S = 1.0
# For a stop request: a rank with a heartbeat within this time makes progress, even if it sleeps between
# heartbeats, as the host of a GPU does. A hanging run is still stopped as early as without this rule: this
# time and `stopping.WORK_GRACE_S` add up to `stopping.STOP_GRACE_S`.
PROGRESS_UNTIL_S = 5.0
# GPU steps have similar durations, so a host may be silent for this multiple of the last gap.
LAST_GAP_FACTOR = 1.5
# Share of a core that counts as work. A rank that only waits takes 1% to 2%.
WORKING_SHARE = 0.15
# The same share if the time that threads wait for a core is included: on a busy machine, a computing rank
# needs a core all the time but gets little CPU time.
CPU_DEMAND_SHARE = 0.6
WORKING_BYTES_PER_S = 256 * 1024


@dataclass
class RankWatch:
    """State of one rank at the last check.

    Attributes:
        host: Name of its machine, if there are several.
        silent_s: Time since its last heartbeat.
        idle_s: Time for which it has been silent and has not worked.
        last_gap_s: Time between its last two heartbeats.
        is_gone: True if its process has ended.
    """

    rank: int
    host: str = ""
    heartbeat: Heartbeat | None = None
    effort: Effort | None = None
    silent_s: float = 0.0
    idle_s: float = 0.0
    last_gap_s: float = 0.0
    is_gone: bool = False

    def update(self, heartbeat: Heartbeat | None, effort: Effort | None, passed_s: float) -> None:
        """Record a check `passed_s` after the last one; `effort` is None if it was not sampled."""
        before, self.effort = self.effort, effort
        if heartbeat is not None and (self.heartbeat is None or heartbeat.count != self.heartbeat.count):
            self.heartbeat = heartbeat
            self.last_gap_s, self.silent_s, self.idle_s = self.silent_s, 0.0, 0.0
            self.is_gone = False
            return
        self.silent_s += passed_s
        self.idle_s = 0.0 if _is_at_work(before, effort, passed_s) else self.idle_s + passed_s

    @property
    def is_stopped(self) -> bool:
        return self.effort is not None and self.effort.is_stopped

    @property
    def makes_progress(self) -> bool:
        """True if its last heartbeat is recent, or a GPU's step takes no longer than the last one."""
        gap_s = self.last_gap_s if self.is_on_gpu else 0.0
        return self.heartbeat is not None and self.silent_s < max(PROGRESS_UNTIL_S, LAST_GAP_FACTOR * gap_s)

    @property
    def is_on_gpu(self) -> bool:
        return self.heartbeat is not None and self.heartbeat.is_on_gpu

    @property
    def takes_part(self) -> bool:
        """True if it still takes part in training."""
        return not self.is_gone and (self.heartbeat is None or self.heartbeat.doing != ENDING)

    @property
    def is_building(self) -> bool:
        return self.heartbeat is None or self.heartbeat.doing in (STARTING, BUILDING)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Ranks that may hang.

    Attributes:
        is_certain: True if they hang; otherwise their stacks must confirm it.
        may_be_deadlock: True if every rank is silent on its GPU; their collectives must confirm it.
    """

    ranks: tuple[int, ...]
    is_certain: bool
    may_be_deadlock: bool = False


def find_suspicion(watches: Sequence[RankWatch], limit_s: float) -> Suspicion | None:
    """Return the ranks that hang or may hang, or None.

    Suspended ranks are checked first: they explain why other ranks are idle.
    """
    participants = [watch for watch in watches if watch.takes_part]
    if all(watch.heartbeat is None for watch in participants):
        return None  # torchrun has not started them yet
    stopped_ranks = [watch.rank for watch in participants if watch.is_stopped and watch.silent_s >= limit_s]
    if stopped_ranks:
        return Suspicion(ranks=tuple(stopped_ranks), is_certain=True)
    idle_ranks = [watch.rank for watch in participants if watch.idle_s >= limit_s]
    all_ranks = tuple(watch.rank for watch in participants)
    # Hosts sleep while their GPUs compute a long step, so for them idle time alone proves nothing.
    may_wait_for_gpus = all(watch.is_on_gpu and not watch.is_building for watch in participants)
    if len(idle_ranks) == len(participants) and not may_wait_for_gpus:
        return Suspicion(ranks=all_ranks, is_certain=True)
    if all(watch.silent_s >= BUSY_FACTOR * limit_s for watch in participants):
        return Suspicion(ranks=all_ranks, is_certain=True)
    # While building the job, ranks wait for each other in many ways.
    doubtful_ranks = [rank for rank in idle_ranks if not watches[rank].is_building]
    may_be_deadlock = all(watch.silent_s >= limit_s and watch.is_on_gpu for watch in participants)
    if not doubtful_ranks and not may_be_deadlock:
        return None
    return Suspicion(ranks=tuple(doubtful_ranks), is_certain=False, may_be_deadlock=may_be_deadlock)


def busy_ranks(watches: Sequence[RankWatch]) -> list[RankWatch]:
    """Return the ranks that work or make progress; none if one is suspended: the others wait for it."""
    participants = [watch for watch in watches if watch.takes_part]
    if any(watch.is_stopped for watch in participants):
        return []
    return [
        watch
        for watch in participants
        if watch.heartbeat is not None and (watch.makes_progress or watch.idle_s < BUSY_UNTIL_S)
    ]


def counted_s(passed_s: float) -> float:
    """Return the part of the time between two checks that counts: without pauses of this process."""
    return min(max(passed_s, 0.0), MAX_INTERVAL_S)


def _is_at_work(before: Effort | None, now: Effort | None, passed_s: float) -> bool:
    if now is None or now.is_stopped:
        return False
    if before is None or now.waits_for_disk:
        return True  # the first sample has nothing to compare with
    cpu_s, io_bytes = now.cpu_s - before.cpu_s, now.io_bytes - before.io_bytes
    cpu_demand_s = now.wanted_s - before.wanted_s
    if cpu_s < 0 or io_bytes < 0:
        return True  # a child has ended, so its CPU time is no longer included
    return (
        cpu_s >= WORKING_SHARE * passed_s
        or cpu_demand_s >= CPU_DEMAND_SHARE * passed_s
        or io_bytes >= WORKING_BYTES_PER_S * passed_s
    )


CHECK_EVERY_S = 1.0
# After this time of silence a rank's process is sampled; before, the rank counts as being in a step.
QUIET_FOR_S = 2.0
MAX_TRACEBACK = 20_000
MAX_NAMED = 8
MAX_PARALLEL_READS = 64
# Time for answers: a running rank polls once a second, even in a hang; a suspended rank does not.
ANSWER_WITHIN_S = 2.5
ANSWER_POLL_S = 0.05
SAME_COLLECTIVES = (
    "All ranks must call the same collectives in the same order. Find the one that a rank does not reach."
)


class HangWatch:
    """Watches the ranks of one run; `check` returns each hang once.

    Attributes:
        hang: The current hang, or None.
    """

    def __init__(self, run: RunDirectory, config: Config, ranks: Ranks) -> None:
        self._run = run
        self._limit_s = config.hang_limit_s
        self._ranks = ranks
        self._watches = [RankWatch(rank) for rank in range(ranks.num_ranks)]
        self._checked_at = time.monotonic()
        self._since_examined_s = 0.0
        self.hang: Cause | None = None

    def check(self) -> Cause | None:
        """Check the ranks if a check is due; return a hang once until `forget`, otherwise None."""
        passed_s = self.follow()
        if passed_s is None:
            return None
        suspicion = find_suspicion(self._watches, self._limit_s)
        if suspicion is None or self.hang is not None or not self._is_examination_due(suspicion, passed_s):
            return None
        self.hang = self._examine(suspicion)
        return self.hang

    def follow(self) -> float | None:
        """Update the watches if due; return the time that counts since the last update, or None."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_EVERY_S:
            return None
        passed_s, self._checked_at = counted_s(now - self._checked_at), now
        for watch in self._watches:
            self._update(watch, passed_s)
        return passed_s

    def is_at_work(self) -> bool:
        """True if a rank makes progress or works, so that it may still read a stop request.

        A rank on a GPU that uses a core may only be waiting: its stack and its collectives decide. If its
        stack cannot be read, it counts as waiting.
        """
        busy_watches = busy_ranks(self._watches)
        silent_on_gpu = [watch for watch in busy_watches if watch.is_on_gpu and not watch.makes_progress]
        if len(silent_on_gpu) < len(busy_watches):
            return True
        with ThreadPoolExecutor(max_workers=MAX_PARALLEL_READS) as pool:
            stacks = list(pool.map(self._ranks.stacks_at_once, [watch.rank for watch in silent_on_gpu]))
        possibly_working = [
            watch
            for watch, rank_stacks in zip(silent_on_gpu, stacks, strict=True)
            if rank_stacks is not None and not rank_stacks.is_waiting
        ]
        if not possibly_working:
            return False
        self._ranks.ask()
        answers = self._answers(time.monotonic() + ANSWER_WITHIN_S)
        views = {rank: answer.groups for rank, answer in answers.items()}
        return not all(_waits_on_gpu(watch, views) for watch in possibly_working)

    @property
    def has_passed(self) -> bool:
        """True if every rank has sent a heartbeat since the hang was found."""
        return self.hang is not None and all(
            watch.silent_s < self._limit_s for watch in self._watches if watch.takes_part
        )

    def forget(self) -> None:
        """Reset, to find the next hang."""
        self.hang = None

    def _update(self, watch: RankWatch, passed_s: float) -> None:
        heartbeat = self._ranks.heartbeat(watch.rank)
        reads_effort = heartbeat is not None and watch.silent_s + passed_s >= QUIET_FOR_S
        effort = self._ranks.effort(watch.rank) if reads_effort else None
        watch.host = self._ranks.host(watch.rank)
        watch.is_gone = reads_effort and effort is None
        watch.update(heartbeat, effort, passed_s)

    def _is_examination_due(self, suspicion: Suspicion, passed_s: float) -> bool:
        """Limit how often ranks that may only be waiting are examined: reading stacks is slow."""
        self._since_examined_s += passed_s
        if not suspicion.is_certain and self._since_examined_s < self._limit_s:
            return False
        self._since_examined_s = 0.0
        return True

    def _examine(self, suspicion: Suspicion) -> Cause | None:
        # Send the request first: the ranks answer while their stacks are read.
        self._ranks.ask()
        requested_at = time.monotonic()
        stacks = self._stacks()
        answers = self._answers(requested_at + ANSWER_WITHIN_S)
        views = {rank: answer.groups for rank, answer in answers.items()}
        behind = heartbeats.ranks_behind_on_gpu(answers)
        culprits = blocking_ranks(suspicion, self._watches, stacks, views, behind)
        # Reading stacks takes seconds, in which a rank that was only slow sends a heartbeat.
        if not culprits or any(self._has_new_heartbeat(rank) for rank in culprits):
            return None
        cause = describe(culprits, self._watches, stacks, heartbeats.gaps(views), behind)
        stacks_path = self._save_stacks(cause, stacks)
        stacks_hint = "" if stacks_path is None else f" Every rank's stack is in logs/{stacks_path.name}."
        return replace(cause, hint=f"{cause.hint}{stacks_hint}")

    def _has_new_heartbeat(self, rank: int) -> bool:
        """True if a rank has sent a heartbeat since the last check."""
        latest, previous = self._ranks.heartbeat(rank), self._watches[rank].heartbeat
        return latest is not None and (previous is None or latest.count != previous.count)

    def _stacks(self) -> dict[int, Stacks]:
        ranks = [watch.rank for watch in self._watches if watch.heartbeat and not watch.is_gone]
        with ThreadPoolExecutor(max_workers=MAX_PARALLEL_READS) as pool:
            return dict(zip(ranks, pool.map(self._ranks.stacks, ranks), strict=True))

    def _answers(self, deadline: float) -> dict[int, RankAnswer]:
        """Return the ranks' answers; a rank that does not answer in time is omitted."""
        answers: dict[int, RankAnswer] = {}
        pending = {watch.rank for watch in self._watches if watch.takes_part and not watch.is_stopped}
        while pending:
            replies = {rank: answer for rank in pending if (answer := self._ranks.answer(rank)) is not None}
            answers |= {rank: parsed for rank, answer in replies.items() if (parsed := from_bytes(answer))}
            pending -= replies.keys()
            if time.monotonic() > deadline:
                break
            time.sleep(ANSWER_POLL_S)
        return answers

    def _save_stacks(self, cause: Cause, stacks: Mapping[int, Stacks]) -> Path | None:
        path = self._run.logs / time.strftime("hang_%Y%m%d-%H%M%S.txt", time.gmtime())
        sections = [cause.message]
        for watch in self._watches:
            title = f"===== rank {watch.rank}: {_activity_text(watch)}"
            sections.append(
                f"{title}\n{stacks[watch.rank].text() if watch.rank in stacks else 'It is gone.'}"
            )
        try:
            path.write_text("\n\n".join(sections) + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            print(f"the stacks could not be saved: {explain(error)}", flush=True)
            return None
        return path


def blocking_ranks(
    suspicion: Suspicion,
    watches: Sequence[RankWatch],
    stacks: Mapping[int, Stacks],
    views: Views | None = None,
    behind_on_gpu: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Return the ranks that block the run: all if they wait for each other, none without a hang.

    In order of evidence: suspended ranks; ranks that never started; ranks whose stack is outside of any
    collective; ranks missing in a collective; GPUs behind the other GPUs. Without such
    evidence, all suspected ranks are returned if the suspicion is certain.
    """
    views = views or {}
    stopped_ranks = tuple(rank for rank in suspicion.ranks if watches[rank].is_stopped)
    if stopped_ranks:
        return stopped_ranks
    ranks_with_stacks = [rank for rank in suspicion.ranks if rank in stacks and stacks[rank].threads]
    stuck_outside = tuple(
        rank
        for rank in ranks_with_stacks
        if not stacks[rank].is_waiting and not _waits_on_gpu(watches[rank], views)
    )
    gaps = heartbeats.gaps(views)
    if not suspicion.is_certain:
        is_deadlock = suspicion.may_be_deadlock and _is_deadlock(gaps, stacks, views)
        return (
            stuck_outside or (is_deadlock and (heartbeats.blamed_ranks(gaps) or _ranks_in_gaps(gaps))) or ()
        )
    not_started = tuple(rank for rank in suspicion.ranks if watches[rank].heartbeat is None)
    return not_started or stuck_outside or heartbeats.blamed_ranks(gaps) or behind_on_gpu or suspicion.ranks


def _is_deadlock(gaps: Sequence[Gap], stacks: Mapping[int, Stacks], views: Views) -> bool:
    """True if a collective can never finish: its ranks disagree, or its missing ranks wait in another one.

    A missing rank that waits for no other rank may still arrive.
    """
    return any(gap.is_mismatch for gap in gaps) or any(
        all(_waits_in_collective(rank, stacks, views) for rank in gap.missing) for gap in gaps
    )


def _waits_in_collective(rank: int, stacks: Mapping[int, Stacks], views: Views) -> bool:
    return rank in stacks and stacks[rank].is_waiting and heartbeats.is_in_collective(rank, views)


def _waits_on_gpu(watch: RankWatch, views: Views) -> bool:
    """True if a rank's GPU is in an unfinished collective: the rank waits, wherever its stack is.

    Its host continues to launch the work of later steps until the launch queue of its GPU is full, then
    blocks at any line of the model that launches a kernel.
    """
    return watch.is_on_gpu and heartbeats.is_in_collective(watch.rank, views)


def _ranks_in_gaps(gaps: Sequence[Gap]) -> tuple[int, ...]:
    return tuple(sorted({rank for gap in gaps for rank in (*gap.waiting, *gap.missing)}))


def describe(
    culprits: Sequence[int],
    watches: Sequence[RankWatch],
    stacks: Mapping[int, Stacks],
    gaps: Sequence[Gap] = (),
    behind_on_gpu: tuple[int, ...] = (),
) -> Cause:
    """Describe a hang for users: which ranks, since when, where, and a remedy."""
    silent_s = min(watches[rank].silent_s for rank in culprits)
    locations = "; ".join(_location_text(rank, watches, stacks) for rank in culprits[:MAX_NAMED])
    if watches[culprits[0]].is_stopped:
        reason = f"{_ranks_text(culprits, 'was', 'were')} suspended from outside (SIGSTOP)"
        hint = "Something suspended the process; SIGCONT resumes it."
    elif tuple(culprits) == behind_on_gpu and not gaps:
        gpu_text = "the GPU of rank" if len(culprits) == 1 else "the GPUs of ranks"
        names = ", ".join(map(str, culprits[:MAX_NAMED]))
        reason = f"{gpu_text} {names} never finished a backward pass, and the others wait"
        hint = "A kernel takes very long or never ends: check what the model computes on this GPU."
    elif (
        len(culprits) > 1
        and (gaps or not watches[0].is_on_gpu)
        and all(rank in stacks and stacks[rank].is_waiting for rank in culprits)
    ):
        lines = {str(stacks[rank].location) for rank in culprits}
        if gaps:
            reason, hint = "the ranks wait for each other in different collectives", SAME_COLLECTIVES
        elif len(lines) > 1:
            reason, hint = "the ranks wait for each other at different lines", SAME_COLLECTIVES
        else:
            reason = "every rank waits for the others at the same line"
            hint = "The ranks agree about their collectives; the reason is unknown."
    elif len(culprits) == len(watches):
        reason = "no rank makes progress"
        hint = "Check the lines at which the ranks are stuck."
    else:
        reason = f"{_ranks_text(culprits, 'is stuck', 'are stuck')}, and the others wait"
        is_mismatch = any(gap.is_mismatch for gap in gaps)
        hint = SAME_COLLECTIVES if is_mismatch else "Check the line at which the rank is stuck."
    gap_texts = [text for gap in gaps[:MAX_NAMED] for text in (str(gap), *_gradient_gaps(gap, stacks))]
    gap_sentences = "".join(f" {text[0].upper()}{text[1:]}." for text in gap_texts if text)
    message = (
        f"The run hangs: {reason}. "
        f"Nothing has been reported for {silent_s:.0f} s: {locations}.{gap_sentences}"
    )
    rank = _slowest(culprits, watches)
    traceback = stacks[rank].text()[:MAX_TRACEBACK] if rank in stacks else None
    return Cause(code="hang", message=message, hint=hint, rank=rank, traceback=traceback)


def _gradient_gaps(gap: Gap, stacks: Mapping[int, Stacks]) -> list[str]:
    """Return the missing ranks of the gradient all-reduce in shared memory, which torch does not record.

    Without this check, the recorded collectives would blame a rank that only waits.
    """
    waiting = tuple(sorted(gap.waiting))
    if gap.is_mismatch or any(rank in stacks and stacks[rank].is_in_gradients for rank in waiting):
        return []
    missing = [rank for rank in gap.missing if rank in stacks and stacks[rank].is_in_gradients]
    ranks_text = _ranks_text(waiting[:MAX_NAMED], "never entered", "never entered")
    subject = f"{ranks_text} the all-reduce of the gradients"
    return [f"{subject}, in which rank {rank} waits" for rank in missing[:MAX_NAMED]]


def _slowest(culprits: Sequence[int], watches: Sequence[RankWatch]) -> int:
    """Return the rank with the least progress."""
    return min(
        culprits,
        key=lambda rank: (
            (heartbeat.step, heartbeat.doing) if (heartbeat := watches[rank].heartbeat) else (-1, 0)
        ),
    )


def _ranks_text(culprits: Sequence[int], singular: str, plural: str) -> str:
    names = ", ".join(map(str, culprits[:MAX_NAMED]))
    return f"rank {names} {singular}" if len(culprits) == 1 else f"ranks {names} {plural}"


def _location_text(rank: int, watches: Sequence[RankWatch], stacks: Mapping[int, Stacks]) -> str:
    host = f" ({watches[rank].host})" if watches[rank].host else ""
    activity = f"rank {rank}{host} is {_activity_text(watches[rank])}"
    frame = stacks[rank].location if rank in stacks else None
    return activity if frame is None else f"{activity}, in {frame}"


def _activity_text(watch: RankWatch) -> str:
    if watch.heartbeat is None:
        return "before its first heartbeat"
    return f"at step {watch.heartbeat.step + 1:,}, {watch.heartbeat.activity}"
