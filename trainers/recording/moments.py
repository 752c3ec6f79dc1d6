"""Moments of a step on one clock, `time.monotonic_ns`: of this process, or of the GPU that does its work."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Moments(Protocol):
    """Takes moments, and says later when they were."""

    def now(self) -> Any: ...

    def when_ns(self, moment: Any) -> int: ...


class HostMoments:
    """Moments of this process: each is its time."""

    now = staticmethod(time.monotonic_ns)

    def when_ns(self, moment: int) -> int:
        return moment


class GpuMoments:
    """Moments at which the GPU comes to a place in its work, by CUDA events.

    The first one is taken while the GPU has nothing to do, so that its time is also the host's; the others
    are counted from it. `when_ns` waits for the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self._began = torch.cuda.Event(enable_timing=True)
        self._began.record()
        self._began_ns = time.monotonic_ns()

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def when_ns(self, moment: torch.cuda.Event) -> int:
        moment.synchronize()
        elapsed_ms: float = self._began.elapsed_time(moment)
        return self._began_ns + round(1e6 * elapsed_ms)


def of(device: torch.device) -> Moments:
    """Return the moments of whatever computes a rank's steps."""
    return GpuMoments(device) if device.type == "cuda" else HostMoments()
