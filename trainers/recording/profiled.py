"""torch.profiler's word on a rank's collectives: the one place that knows how it names them.

gloo's are noted from the call to the end of the work, whichever thread does it. On a GPU they are NCCL's
kernels, in the GPU's own time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

NUM_ANCHORS = 5
_ANCHOR = "recording: anchor {}"
_ON_HOST = "gloo:"
_ON_GPU = "nccl"
_LONGEST_NAME = 80
# As the profiler writes the types of C++.
_NUM_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4, "unsigned char": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective of this rank, in moments of `time.monotonic_ns`; unknown bytes are None."""

    name: str
    began_ns: int
    ended_ns: int
    num_bytes: int | None

    @property
    def is_all_reduce(self) -> bool:
        return "allreduce" in self.name.lower().replace("_", "")

    @property
    def algorithm(self) -> str | None:
        """The way it took, as NCCL names its kernels: ncclDevKernel_AllReduce_Sum_f32_RING_LL."""
        words = self.name.upper().split("_")
        return next((way for way in ("ring", "tree") if way.upper() in words), None)


class CollectiveProfile:
    """Runs the profiler while steps are recorded."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_gpu else [])]
        self._profile = profile(activities=activities, record_shapes=True, acc_events=True)
        self._anchors: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start; moments that both clocks know come first."""
        self._profile.start()
        for number in range(NUM_ANCHORS):
            before = time.monotonic_ns()
            with record_function(_ANCHOR.format(number)):
                pass
            self._anchors.append((before, time.monotonic_ns()))

    def end(self) -> list[Collective]:
        """Stop, and return the collectives in the order in which they began.

        Raises:
            RuntimeError, ValueError: when the profiler has nothing that can be used.
        """
        self._profile.stop()
        found = self._profile.events() or []
        origin_ns = _origin_ns(found, self._anchors)
        collectives = [_collective(event, origin_ns) for event in found if self._is_collective(event)]
        return sorted(collectives, key=lambda each: each.began_ns)

    def _is_collective(self, event: Any) -> bool:
        name: str = event.name
        if self._is_gpu:
            # The profiler repeats ProcessGroupNCCL's annotation ("nccl:all_reduce") on the GPU's timeline,
            # around the kernel that does the work. Counted too, each collective would be there twice.
            is_on_gpu = event.device_type == DeviceType.CUDA and not event.is_user_annotation
            return is_on_gpu and _ON_GPU in name.lower()
        return name.startswith(_ON_HOST)


def _origin_ns(events: Iterable[Any], anchors: Sequence[tuple[int, int]]) -> int:
    """Return when the profiler's time was 0, by the anchor that took the shortest."""
    number = min(range(len(anchors)), key=lambda place: anchors[place][1] - anchors[place][0])
    name = _ANCHOR.format(number)
    anchor = next((event for event in events if event.name == name), None)
    if anchor is None:
        raise ValueError("the profiler has lost the moments at which it began")
    before, after = anchors[number]
    middle_us: float = (anchor.time_range.start + anchor.time_range.end) / 2
    return round((before + after) / 2 - 1000 * middle_us)


def _collective(event: Any, origin_ns: int) -> Collective:
    return Collective(
        name=event.name[:_LONGEST_NAME],
        began_ns=origin_ns + round(1000 * event.time_range.start),
        ended_ns=origin_ns + round(1000 * event.time_range.end),
        num_bytes=_num_bytes(event),
    )


def _num_bytes(event: Any) -> int | None:
    """Return the bytes of its tensor; None where it has several, or numbers of a type not known here."""
    shapes, kinds = event.input_shapes or [], event.input_dtypes or []
    if len(shapes) != 1 or len(kinds) != 1 or kinds[0] not in _NUM_BYTES:
        return None
    if not all(isinstance(size, int) for size in shapes[0]):
        return None
    num_values: int = math.prod(shapes[0])
    return _NUM_BYTES[kinds[0]] * num_values
