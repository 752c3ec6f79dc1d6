"""Calls with which the host waits for the GPU, counted per step in a trace of torch's profiler."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

QUIET = "a step without a report"
REPORTED = "a step with a report"  # begins a report, or reads the one begun in the previous step

# Names of waits in the runtime and the driver, including the copy that returns only when it is done.
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
LAUNCH = "Launch"  # cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch
# A report waits for an event recorded one step ago, not for all work.
PATIENT = ("cudaEventSynchronize", "cuEventSynchronize")


@dataclass
class Waits:
    """The number of steps of a kind, and the calls in them.

    Attributes:
        num_launches: launches in these steps.
        least_handed_out: minimum number of launches between the last copy to the host and a wait: the
            work that the GPU has during the wait. None without a wait.
    """

    num_steps: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    num_launches: int = 0
    least_handed_out: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields; `dataclasses.asdict` would count the pairs of a `Counter`, not copy it."""
        return vars(self) | {"calls": dict(self.calls)}

    def a_step(self) -> dict[str, float]:
        """Return the number of each call per step."""
        return {name: round(count / self.num_steps, 3) for name, count in sorted(self.calls.items())}


def count_waits(trace: Sequence[Mapping[str, Any]]) -> dict[str, Waits]:
    """Return the waits and the copies to the host in each kind of step, ignoring calls between steps.

    Args:
        trace: the `traceEvents` of a trace in Chrome's format; steps are ranges named `QUIET` or `REPORTED`.

    A copy belongs to the step that requested it, not to the one in which the GPU executed it.
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
    num_handed_out = 0
    for moment, call in sorted(_calls(trace) + _launches(trace)):
        place = bisect.bisect_right(begins, moment) - 1
        kind = found[steps[place][2]] if place >= 0 and moment < steps[place][1] else Waits()
        if LAUNCH in call:
            num_handed_out += 1
            kind.num_launches += 1
            continue
        kind.calls[call] += 1
        if call == TO_HOST:
            num_handed_out = 0
        else:
            least = kind.least_handed_out
            kind.least_handed_out = num_handed_out if least is None else min(least, num_handed_out)
    return found


def waits_with_work_ahead(found: Mapping[str, Waits]) -> bool:
    """True if the host waits for a report only while the GPU still has most of another step to do."""
    quiet, reported = found[QUIET], found[REPORTED]
    if not quiet.num_steps or reported.least_handed_out is None:
        return False
    is_patient = not set(reported.calls) - {*PATIENT, TO_HOST}
    return is_patient and reported.least_handed_out > quiet.num_launches / quiet.num_steps / 2


def _launches(trace: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    return [
        (float(event["ts"]), str(event["name"]))
        for event in trace
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and LAUNCH in str(event["name"])
    ]


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
