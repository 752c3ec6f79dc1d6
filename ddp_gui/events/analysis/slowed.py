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
    going_on: dict[int, int] = {}  # by rank, the place in what was found
    for mark in marks:
        asked = _asked(mark)
        if asked is not None:
            ended = [asked[0]] if asked[0] in going_on else []
        else:
            ended = list(going_on) if mark["kind"] == "state" and mark["state"] == "starting" else []
        for rank in ended:
            place = going_on.pop(rank)
            found[place] = replace(found[place], until_step=mark["step"])
        if asked is not None and asked[1]:
            going_on[asked[0]] = len(found)
            found.append(Slowed(rank=asked[0], delay_ms=asked[1], after_step=mark["step"]))
    return [each for each in found if each.until_step is None or each.until_step > each.after_step]


def _asked(mark: Event) -> tuple[int, int] | None:
    """Return rank and delay of an accepted `slow_rank` command; None for any other event."""
    if mark["kind"] != "command" or mark["name"] != "slow_rank" or not mark.get("accepted"):
        return None
    arguments = mark.get("arguments") or {}
    rank, delay_ms = arguments.get("rank"), arguments.get("delay_ms")
    return (rank, delay_ms) if isinstance(rank, int) and isinstance(delay_ms, int) else None


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
