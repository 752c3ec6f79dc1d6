"""Watches the ranks of a run for a hang: their heartbeats, their processes, and where they stand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import collectives
from trainers.engines.heartbeats.collectives import Answer, Gap, Views
from trainers.engines.local.diagnosis import hangs
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.engines.local.diagnosis.hangs import RankWatch, Suspicion
from trainers.engines.local.diagnosis.ranks import Ranks
from trainers.engines.local.diagnosis.stacks import Stacks
from trainers.machine.os_errors import explain

CHECK_EVERY_S = 1.0
# Before that a step is a step: nobody looks at what its process does.
QUIET_FOR_S = 2.0
MAX_TRACEBACK = 20_000
MOST_NAMED = 8
MOST_READ_AT_ONCE = 64
# A rank hears a question once a second, also while it hangs; one that was stopped does not.
ANSWER_WITHIN_S = 2.5
ANSWER_POLL_S = 0.05
SAME_COLLECTIVES = (
    "All ranks must call the same collectives in the same order: find the one that not all ranks reach."
)


class HangWatch:
    """Looks about once a second; `check` returns a hang at the moment it is found."""

    def __init__(self, run: RunDirectory, config: Config, ranks: Ranks) -> None:
        self._run = run
        self._limit_s = config.hang_limit_s
        self._ranks = ranks
        self._watches = [RankWatch(rank) for rank in range(ranks.num_ranks)]
        self._checked_at = time.monotonic()
        self._asked_s = 0.0
        self.found: Cause | None = None

    def check(self) -> Cause | None:
        """Look when it is time; return a hang once, and again only after the ranks have gone on."""
        passed_s = self.follow()
        if passed_s is None:
            return None
        suspicion = hangs.suspect(self._watches, self._limit_s)
        if suspicion is None or self.found is not None or not self._is_time_to_ask(suspicion, passed_s):
            return None
        self.found = self._examine(suspicion)
        return self.found

    def follow(self) -> float | None:
        """See what the ranks do, when it is time; return how much time that speaks for."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_EVERY_S:
            return None
        passed_s, self._checked_at = hangs.counted_s(now - self._checked_at), now
        for watch in self._watches:
            self._update(watch, passed_s)
        return passed_s

    def is_at_work(self) -> bool:
        """Tell whether a rank gets on or works, so that a stop request may still be heard.

        On a GPU one that takes a core may only be waiting: there its stack or its collectives say so, and
        where its stack cannot be read, it is not at work.
        """
        busy = hangs.busy(self._watches)
        silent_on_gpu = [watch for watch in busy if watch.is_on_gpu and not watch.gets_on]
        if len(silent_on_gpu) < len(busy):
            return True
        with ThreadPoolExecutor(max_workers=MOST_READ_AT_ONCE) as pool:
            standing = list(pool.map(self._ranks.stacks_at_once, [watch.rank for watch in silent_on_gpu]))
        may_work = [
            watch
            for watch, found in zip(silent_on_gpu, standing, strict=True)
            if found is not None and not found.is_waiting
        ]
        if not may_work:
            return False
        self._ranks.ask()
        answers = self._answers(time.monotonic() + ANSWER_WITHIN_S)
        views = {rank: answer.groups for rank, answer in answers.items()}
        return not all(_is_held_by_gpu(watch, views) for watch in may_work)

    @property
    def has_passed(self) -> bool:
        """Tell whether every rank has beaten again since the hang was found."""
        return self.found is not None and all(
            watch.silent_s < self._limit_s for watch in self._watches if watch.counts
        )

    def forget(self) -> None:
        """Be ready to find the next hang."""
        self.found = None

    def _update(self, watch: RankWatch, passed_s: float) -> None:
        beat = self._ranks.beat(watch.rank)
        reads_effort = beat is not None and watch.silent_s + passed_s >= QUIET_FOR_S
        used = self._ranks.effort(watch.rank) if reads_effort else None
        watch.host = self._ranks.host(watch.rank)
        watch.is_gone = reads_effort and used is None
        watch.update(beat, used, passed_s)

    def _is_time_to_ask(self, suspicion: Suspicion, passed_s: float) -> bool:
        """Ranks that may only be waiting are not asked for their stacks every second."""
        self._asked_s += passed_s
        if not suspicion.is_certain and self._asked_s < self._limit_s:
            return False
        self._asked_s = 0.0
        return True

    def _examine(self, suspicion: Suspicion) -> Cause | None:
        self._ranks.ask()
        asked_at = time.monotonic()
        standing = self._stacks()
        answers = self._answers(asked_at + ANSWER_WITHIN_S)
        views = {rank: answer.groups for rank, answer in answers.items()}
        behind = collectives.behind_on_gpu(answers)
        culprits = culprits_of(suspicion, self._watches, standing, views, behind)
        # Reading stacks takes seconds: on a busy machine one that was only slow has gone on meanwhile.
        if not culprits or any(self._has_gone_on(rank) for rank in culprits):
            return None
        cause = describe(culprits, self._watches, standing, collectives.gaps(views), behind)
        dump = self._keep(cause, standing)
        where = "" if dump is None else f" Every rank's stack is in logs/{dump.name}."
        return replace(cause, hint=f"{cause.hint}{where}")

    def _has_gone_on(self, rank: int) -> bool:
        """Tell whether a rank has beaten since the last look."""
        newest, seen = self._ranks.beat(rank), self._watches[rank].beat
        return newest is not None and (seen is None or newest.count != seen.count)

    def _stacks(self) -> dict[int, Stacks]:
        there = [watch.rank for watch in self._watches if watch.beat and not watch.is_gone]
        with ThreadPoolExecutor(max_workers=MOST_READ_AT_ONCE) as pool:
            return dict(zip(there, pool.map(self._ranks.stacks, there), strict=True))

    def _answers(self, deadline: float) -> dict[int, Answer]:
        """Return what the ranks say; who does not answer in time is left out."""
        answers: dict[int, Answer] = {}
        waited_for = {watch.rank for watch in self._watches if watch.counts and not watch.is_stopped}
        while waited_for:
            said = {rank: answer for rank in waited_for if (answer := self._ranks.answer(rank)) is not None}
            answers |= {
                rank: found for rank, answer in said.items() if (found := collectives.from_bytes(answer))
            }
            waited_for -= said.keys()
            if time.monotonic() > deadline:
                break
            time.sleep(ANSWER_POLL_S)
        return answers

    def _keep(self, cause: Cause, standing: Mapping[int, Stacks]) -> Path | None:
        path = self._run.logs / time.strftime("hang_%Y%m%d-%H%M%S.txt", time.gmtime())
        parts = [cause.message]
        for watch in self._watches:
            words = f"===== rank {watch.rank}: {_words(watch)}"
            parts.append(
                f"{words}\n{standing[watch.rank].text() if watch.rank in standing else 'It is gone.'}"
            )
        try:
            path.write_text("\n\n".join(parts) + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            print(f"the stacks could not be saved: {explain(error)}", flush=True)
            return None
        return path


def culprits_of(
    suspicion: Suspicion,
    watches: Sequence[RankWatch],
    standing: Mapping[int, Stacks],
    views: Views | None = None,
    behind_on_gpu: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Return the ranks the others wait for; all of them where they wait for each other; none: no hang."""
    views = views or {}
    stopped = tuple(rank for rank in suspicion.ranks if watches[rank].is_stopped)
    if stopped:
        return stopped
    known = [rank for rank in suspicion.ranks if rank in standing and standing[rank].threads]
    astray = tuple(
        rank for rank in known if not standing[rank].is_waiting and not _is_held_by_gpu(watches[rank], views)
    )
    gaps = collectives.gaps(views)
    if not suspicion.is_certain:
        is_deadlock = suspicion.may_be_deadlock and _is_deadlock(gaps, standing, views)
        return astray or (is_deadlock and (collectives.blamed(gaps) or _all_in(gaps))) or ()
    not_begun = tuple(rank for rank in suspicion.ranks if watches[rank].beat is None)
    return not_begun or astray or collectives.blamed(gaps) or behind_on_gpu or suspicion.ranks


def _is_deadlock(gaps: Sequence[Gap], standing: Mapping[int, Stacks], views: Views) -> bool:
    """Tell whether a collective never ends: its ranks mean different things, or who is missing waits, too.

    One that is missing and waits for nobody may still come.
    """
    return any(gap.is_mismatch for gap in gaps) or any(
        all(_waits_for_others(rank, standing, views) for rank in gap.missing) for gap in gaps
    )


def _waits_for_others(rank: int, standing: Mapping[int, Stacks], views: Views) -> bool:
    return rank in standing and standing[rank].is_waiting and collectives.is_in_one(rank, views)


def _is_held_by_gpu(watch: RankWatch, views: Views) -> bool:
    """Return True if a rank's GPU is in a collective that has not ended: the rank waits wherever it stands.

    Its host goes on to launch the work of later steps until the launch queue of its GPU is full, then blocks
    at any line of the model that launches a kernel.
    """
    return watch.is_on_gpu and collectives.is_in_one(watch.rank, views)


def _all_in(gaps: Sequence[Gap]) -> tuple[int, ...]:
    return tuple(sorted({rank for gap in gaps for rank in (*gap.waiting, *gap.missing)}))


def describe(
    culprits: Sequence[int],
    watches: Sequence[RankWatch],
    standing: Mapping[int, Stacks],
    gaps: Sequence[Gap] = (),
    behind_on_gpu: tuple[int, ...] = (),
) -> Cause:
    """Say in plain words who hangs, since when and where, and what to do."""
    silent_s = min(watches[rank].silent_s for rank in culprits)
    standing_at = "; ".join(_place(rank, watches, standing) for rank in culprits[:MOST_NAMED])
    if watches[culprits[0]].is_stopped:
        why = f"{_ranks(culprits, 'was', 'were')} suspended from outside (SIGSTOP)"
        hint = "Something suspended the process; SIGCONT resumes it."
    elif tuple(culprits) == behind_on_gpu and not gaps:
        whose = "the GPU of rank" if len(culprits) == 1 else "the GPUs of ranks"
        names = ", ".join(map(str, culprits[:MOST_NAMED]))
        why = f"{whose} {names} never finished a backward pass, and the others wait"
        hint = "A kernel takes very long or never ends: check what the model computes there."
    elif (
        len(culprits) > 1
        and (gaps or not watches[0].is_on_gpu)
        and all(rank in standing and standing[rank].is_waiting for rank in culprits)
    ):
        places = {str(standing[rank].place) for rank in culprits}
        if gaps:
            why, hint = "the ranks wait for each other in different collectives", SAME_COLLECTIVES
        elif len(places) > 1:
            why, hint = "the ranks wait for each other at different lines", SAME_COLLECTIVES
        else:
            why = "every rank waits for the others at the same line"
            hint = "The ranks do not disagree, as far as they can tell; why no answer comes is not known."
    elif len(culprits) == len(watches):
        why = "no rank makes progress"
        hint = "Check the lines they are stuck at."
    else:
        why = f"{_ranks(culprits, 'is stuck', 'are stuck')}, and the others wait"
        is_mismatch = any(gap.is_mismatch for gap in gaps)
        hint = SAME_COLLECTIVES if is_mismatch else "Check the line it is stuck at."
    gap_words = [words for gap in gaps[:MOST_NAMED] for words in (str(gap), *_of_gradients(gap, standing))]
    in_what = "".join(f" {words[0].upper()}{words[1:]}." for words in gap_words if words)
    message = f"The run hangs: {why}. Nothing has been reported for {silent_s:.0f} s: {standing_at}.{in_what}"
    rank = _behind(culprits, watches)
    traceback = standing[rank].text()[:MAX_TRACEBACK] if rank in standing else None
    return Cause(code="hang", message=message, hint=hint, rank=rank, traceback=traceback)


def _of_gradients(gap: Gap, standing: Mapping[int, Stacks]) -> list[str]:
    """Return who is missing in the all-reduce of the gradients in shared memory, which torch does not know.

    Alone, the collective that torch does know would name the rank that is kept waiting as the missing one.
    """
    waiting = tuple(sorted(gap.waiting))
    if gap.is_mismatch or any(rank in standing and standing[rank].is_in_gradients for rank in waiting):
        return []
    missing = [rank for rank in gap.missing if rank in standing and standing[rank].is_in_gradients]
    who = _ranks(waiting[:MOST_NAMED], "never entered", "never entered")
    what = f"{who} the all-reduce of the gradients"
    return [f"{what}, in which rank {rank} waits" for rank in missing[:MOST_NAMED]]


def _behind(culprits: Sequence[int], watches: Sequence[RankWatch]) -> int:
    """Return the rank that has come least far."""
    return min(
        culprits, key=lambda rank: (beat.step, beat.doing) if (beat := watches[rank].beat) else (-1, 0)
    )


def _ranks(culprits: Sequence[int], one: str, many: str) -> str:
    names = ", ".join(map(str, culprits[:MOST_NAMED]))
    return f"rank {names} {one}" if len(culprits) == 1 else f"ranks {names} {many}"


def _place(rank: int, watches: Sequence[RankWatch], standing: Mapping[int, Stacks]) -> str:
    host = f" ({watches[rank].host})" if watches[rank].host else ""
    words = f"rank {rank}{host} is {_words(watches[rank])}"
    place = standing[rank].place if rank in standing else None
    return words if place is None else f"{words}, in {place}"


def _words(watch: RankWatch) -> str:
    if watch.beat is None:
        return "before its first heartbeat"
    return f"at step {watch.beat.step + 1:,}, {watch.beat.words}"
