"""Calls that make the host wait for the GPU, counted in a trace of torch's profiler, step by step."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

QUIET = "a step without a report"
REPORTED = "a step with a report"

# What waiting is called by the runtime and by the driver; also the copy that returns when it is done.
WAITS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
)
TO_HOST = "Memcpy DtoH"


@dataclass
class Waits:
    """How many steps of a kind were seen, and which calls in them."""

    num_steps: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def a_step(self) -> dict[str, float]:
        """Return each call's number per step."""
        return {name: round(count / self.num_steps, 3) for name, count in sorted(self.calls.items())}


def count_waits(trace: Sequence[Mapping[str, Any]]) -> dict[str, Waits]:
    """Return the waits and the copies to the host in each kind of step; what is between steps is not counted.

    Args:
        trace: the `traceEvents` of a trace in Chrome's format; steps are ranges named `QUIET` or `REPORTED`.

    A copy belongs to the step that asked for it, not to the one in which the GPU came to it.
    """
    steps = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"]))
        for event in trace
        if event.get("cat") == "user_annotation" and event.get("name") in (QUIET, REPORTED)
    )
    found = {QUIET: Waits(), REPORTED: Waits()}
    for _, _, name in steps:
        found[name].num_steps += 1
    begins = [began for began, _, _ in steps]
    for moment, call in _calls(trace):
        place = bisect.bisect_right(begins, moment) - 1
        if place >= 0 and moment < steps[place][1]:
            found[steps[place][2]].calls[call] += 1
    return found


def _calls(trace: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    host = [event for event in trace if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    asked_at = {event.get("args", {}).get("correlation"): float(event["ts"]) for event in host}
    waits = [(float(event["ts"]), str(event["name"])) for event in host if event["name"] in WAITS]
    copies = [
        (asked_at[event["args"]["correlation"]], TO_HOST)
        for event in trace
        if event.get("cat") == "gpu_memcpy" and str(event["name"]).startswith(TO_HOST)
    ]
    return waits + copies
