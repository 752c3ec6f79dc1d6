"""When a rank of a run was slowed down on purpose: its times then say nothing of the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trainers.contract.events import Event


@dataclass(frozen=True, kw_only=True)
class Slowed:
    """A rank that sleeps in each step after `after_step`; until a step, or still."""

    rank: int
    delay_ms: int
    after_step: int
    until_step: int | None = None


def spans(marks: Iterable[Event]) -> list[Slowed]:
    """Return when which rank was slowed down, by the answers to `slow_rank`; a new start sleeps nowhere."""
    found: list[Slowed] = []
    for mark in marks:
        if mark["kind"] == "state" and mark["state"] == "starting":
            found = [_ended(each, mark["step"]) for each in found]
        if mark["kind"] != "command" or mark["name"] != "slow_rank" or not mark.get("accepted"):
            continue
        asked = mark.get("arguments") or {}
        rank, delay_ms, step = asked.get("rank"), asked.get("delay_ms"), mark["step"]
        found = [_ended(each, step) if each.rank == rank else each for each in found]
        if isinstance(rank, int) and delay_ms:
            found.append(Slowed(rank=rank, delay_ms=int(delay_ms), after_step=step))
    return [each for each in found if each.until_step is None or each.until_step > each.after_step]


def in_words(spans: Sequence[Slowed], ended_at: int | None) -> str:
    """Say when a rank was slowed down, the last time of all.

    Args:
        ended_at: the last step of a run that is over; None while it goes on.
    """
    newest = spans[-1]
    until = ended_at if newest.until_step is None else newest.until_step
    first = newest.after_step + 1
    lets, when = "lets", f"since step {first:,}"
    if until is not None:
        lets, when = "let", f"from step {first:,} to {until:,}"
    more = f" (the last of {len(spans)} such times)" if len(spans) > 1 else ""
    return (
        f"Somebody {lets} rank {newest.rank} sleep {newest.delay_ms} ms in each step {when}{more}: "
        "do not compare this run's times with those of other runs."
    )


def _ended(span: Slowed, step: int) -> Slowed:
    return span if span.until_step is not None else replace(span, until_step=step)
