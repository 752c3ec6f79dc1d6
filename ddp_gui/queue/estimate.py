"""When a queued run will probably start: a simulation of the rule with the runs' expected ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddp_gui.queue.policy import Running, Situation, Waiting, decide


def waiting_times(
    situation: Situation, remaining_s: Mapping[str, float | None], usual_s: float | None, now_unix_s: float
) -> dict[str, float]:
    """Return the seconds until each queued run starts, as far as they can be estimated.

    Args:
        remaining_s: how long each live run will still take; None if unknown.
        usual_s: the recent median duration, assumed for queued runs; None if none has ended.
    """
    if situation.is_paused:
        return {}
    at_unix_s, found = now_unix_s, dict[str, float]()
    ends_at = {
        run.run_id: now_unix_s + left
        for run in situation.running
        if (left := limited(remaining_s.get(run.run_id), run, situation, now_unix_s)) is not None
    }
    while situation.waiting:
        starts = {start.run_id: start for start in decide(situation, at_unix_s)}
        began = [run for run in situation.waiting if run.run_id in starts]
        for run in began:
            found[run.run_id] = at_unix_s - now_unix_s
            took_s = limited(usual_s, _begun(run, (), at_unix_s, situation), situation, at_unix_s)
            if took_s is not None:
                ends_at[run.run_id] = at_unix_s + took_s
        situation = replace(
            situation,
            waiting=[run for run in situation.waiting if run.run_id not in starts],
            running=[
                *situation.running,
                *(_begun(run, starts[run.run_id].gpus, at_unix_s, situation) for run in began),
            ],
        )
        next_end = min(ends_at, key=lambda run_id: ends_at[run_id], default=None)
        if next_end is None:
            return found
        at_unix_s = max(at_unix_s, ends_at.pop(next_end))
        running = [run for run in situation.running if run.run_id != next_end]
        situation = replace(situation, running=running)
    return found


def _begun(run: Waiting, gpus: tuple[str, ...], at_unix_s: float, situation: Situation) -> Running:
    return Running(
        run_id=run.run_id,
        person=run.person,
        kind=run.kind,
        num_ranks=run.num_ranks,
        began_unix_s=at_unix_s,
        gpus=gpus,
        num_threads=situation.capacity.num_threads,
    )


def limited(left_s: float | None, run: Running, situation: Situation, at_unix_s: float) -> float | None:
    """Return how long a run will take: its own estimate, at most its person's limit."""
    minutes = situation.rules.of(run.person).minutes_per_run
    if minutes is None:
        return left_s
    allowed_s = max(0.0, run.began_unix_s + 60 * minutes - at_unix_s)
    return allowed_s if left_s is None else min(left_s, allowed_s)
