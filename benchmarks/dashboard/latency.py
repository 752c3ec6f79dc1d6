"""How old each step event is when it is seen."""

from __future__ import annotations

from collections.abc import Sequence

from trainers.contract import events
from trainers.contract.rundir import RunDirectory


def latencies_ms(
    run: RunDirectory, seen: Sequence[tuple[int, float]], since_unix_s: float, until_unix_s: float
) -> list[float]:
    """Return the delay of every step event of a time span, not only of the newest of an update.

    `seen` holds (cursor, unix time in ms): from then on every event before the cursor was there. An event
    that nobody saw by the end of the span counts until then.
    """
    delays = []
    looks = iter(sorted(seen))
    look: tuple[int, float] | None = next(looks, None)
    for event in events.read_all(run.events):
        happened_ms = event["time_unix_s"] * 1000
        if event["kind"] != "step" or not since_unix_s <= event["time_unix_s"] < until_unix_s:
            continue
        while look is not None and look[0] <= event["seq"]:
            look = next(looks, None)
        delays.append((look[1] if look else until_unix_s * 1000) - happened_ms)
    return delays
