"""Profiles of recorded steps, overlap of all-reduce and backward, and clock differences of machines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from trainers.parallel.process_group import World

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Merge overlapping spans; return them in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> float:
    """Return the total time covered by the spans."""
    return sum(end - start for start, end in union(spans))


def overlap(left: Iterable[Span], right: Iterable[Span]) -> float:
    """Return the time covered by both the first and the second spans."""
    first, second = union(left), union(right)
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)


def step_numbers(step: Mapping[str, Any], *, is_blocking: bool) -> dict[str, float | None]:
    """Return the duration of each part of a step, and the all-reduce time hidden behind backward.

    Backward computes until the last bucket is ready; all-reduce time until then is hidden. If the computing
    thread averages the gradients itself (`is_blocking`), nothing is hidden.
    """
    numbers: dict[str, float | None] = {"step_s": step["ended_s"] - step["began_s"]}
    for part in ("data", "forward", "backward", "both", "optimizer", "other"):
        spans = [(start, end) for name, start, end in step["parts"] if name == part]
        numbers[f"{part}_s"] = length(spans) if spans else None
    reduces = [(entry["began_s"], entry["ended_s"]) for entry in step["all_reduces"]]
    backward = [(start, end) for name, start, end in step["parts"] if name == "backward"]
    if not reduces:
        return numbers | {"all_reduce_s": None, "hidden_s": None, "waited_s": None}
    last_ready = max(start for start, _ in reduces)
    computing = [(start, min(end, last_ready)) for start, end in backward if start < last_ready]
    rounds = [entry for reduce in step["all_reduces"] for entry in reduce["rounds"]]
    return numbers | {
        "all_reduce_s": length(reduces),
        "hidden_s": 0.0 if is_blocking else overlap(reduces, computing),
        "waited_s": sum(met_s - written_s for _, written_s, met_s, *_ in rounds) if rounds else None,
    }


def recording_numbers(ranks: Sequence[Mapping[str, Any]], *, is_blocking: bool) -> dict[str, Any]:
    """Return the mean of each rank's step numbers, and the hidden share of the total all-reduce time."""
    rank_numbers = []
    for rank in ranks:
        steps = [step_numbers(step, is_blocking=is_blocking) for step in rank["steps"]]
        means = {name: _mean([step[name] for step in steps]) for name in (steps[0] if steps else ())}
        rank_numbers.append({"rank": rank["rank"], **means})
    total_s = sum(numbers.get("all_reduce_s") or 0.0 for numbers in rank_numbers)
    hidden_s = sum(numbers.get("hidden_s") or 0.0 for numbers in rank_numbers)
    return {"overlap": round(hidden_s / total_s, 4) if total_s > 0 else None, "ranks": rank_numbers}


def worst_contradiction_s(ranks: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return the number of all-reduces common to all ranks, and the worst contradiction in seconds.

    An all-reduce cannot end on a rank before it has begun on all ranks. If the timestamps show this, the
    clocks differ by at least this time.
    """
    num_checked, worst_s = 0, 0.0
    for rank_steps in zip(*(rank["steps"] for rank in ranks), strict=True):
        reduces = [step["all_reduces"] for step in rank_steps]
        if len({len(entry) for entry in reduces}) != 1:
            continue
        for matching in zip(*reduces, strict=True):
            num_checked += 1
            began_s = max(entry["began_s"] for entry in matching)
            worst_s = max(worst_s, began_s - min(entry["ended_s"] for entry in matching))
    return num_checked, worst_s


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(values), 9) if known else None


NUM_PINGS = 16


@dataclass(frozen=True, kw_only=True)
class Ping:
    """A message to another rank and back: sent and returned by this clock, answered by the other one."""

    sent_ns: int
    answered_ns: int
    returned_ns: int

    @property
    def took_ns(self) -> int:
        return self.returned_ns - self.sent_ns


@dataclass(frozen=True, kw_only=True)
class Skew:
    """The offset of another clock (positive: ahead), and the maximum error of this value."""

    ahead_ns: int = 0
    error_ns: int = 0


def estimate_skew(pings: Sequence[Ping]) -> Skew:
    """Return the offset of the clock that answered, from the quickest ping."""
    best = min(pings, key=lambda ping: ping.took_ns)
    middle_ns = (best.sent_ns + best.returned_ns) // 2
    return Skew(ahead_ns=best.answered_ns - middle_ns, error_ns=-(-best.took_ns // 2))


def measure_clock_skew(world: World, nodes: Sequence[int]) -> dict[int, Skew]:
    """Return, on rank 0, the skew of each machine's clock; every rank must call it.

    Args:
        nodes: the machine of each rank.
    """
    first_ranks = {node: rank for rank, node in reversed(list(enumerate(nodes)))}
    main_node = nodes[0]
    skews = {main_node: Skew()}
    for node, rank in sorted(first_ranks.items()):
        if node == main_node:
            continue
        if world.is_main:
            skews[node] = estimate_skew([_ping(world, rank) for _ in range(NUM_PINGS)])
        elif world.rank == rank:
            for _ in range(NUM_PINGS):
                _answer_ping(world)
    return skews


def _ping(world: World, rank: int) -> Ping:
    message = torch.zeros(1, dtype=torch.int64)
    sent_ns = time.monotonic_ns()
    dist.send(message, dst=rank, group=world.slow_group)
    dist.recv(message, src=rank, group=world.slow_group)
    return Ping(sent_ns=sent_ns, answered_ns=int(message.item()), returned_ns=time.monotonic_ns())


def _answer_ping(world: World) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    dist.recv(message, src=0, group=world.slow_group)
    message[0] = time.monotonic_ns()
    dist.send(message, dst=0, group=world.slow_group)


NUM_ANCHORS = 5
_ANCHOR = "recording: anchor {}"
_ON_HOST = "gloo:"
_ON_GPU = "nccl"
_MAX_NAME_LENGTH = 80
# Sizes of types; the profiler uses their names in C++.
_NUM_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4, "unsigned char": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective of this rank, in `time.monotonic_ns`; unknown bytes are None."""

    name: str
    began_ns: int
    ended_ns: int
    num_bytes: int | None

    @property
    def is_all_reduce(self) -> bool:
        return "allreduce" in self.name.lower().replace("_", "")

    @property
    def algorithm(self) -> str | None:
        """The algorithm in the name of NCCL's kernel, such as ncclDevKernel_AllReduce_Sum_f32_RING_LL."""
        name_parts = self.name.upper().split("_")
        return next((algorithm for algorithm in ("ring", "tree") if algorithm.upper() in name_parts), None)


class CollectiveProfile:
    """Runs the profiler while steps are recorded."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_gpu else [])]
        self._profile = profile(activities=activities, record_shapes=True, acc_events=True)
        self._anchors: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start the profiler, and record anchors, which are moments measured by both clocks."""
        self._profile.start()
        for number in range(NUM_ANCHORS):
            before_ns = time.monotonic_ns()
            with record_function(_ANCHOR.format(number)):
                pass
            self._anchors.append((before_ns, time.monotonic_ns()))

    def end(self) -> list[Collective]:
        """Stop, and return the collectives in the order in which they began.

        Raises:
            RuntimeError, ValueError: if the profiler has no usable events.
        """
        self._profile.stop()
        events = self._profile.events() or []
        origin_ns = _origin_ns(events, self._anchors)
        collectives = [_collective(event, origin_ns) for event in events if self._is_collective(event)]
        return sorted(collectives, key=lambda collective: collective.began_ns)

    def _is_collective(self, event: Any) -> bool:
        name: str = event.name
        if self._is_gpu:
            # Exclude ProcessGroupNCCL's annotation ("nccl:all_reduce"), which the profiler repeats on the
            # GPU's timeline around the actual kernel; otherwise each collective would appear twice.
            is_on_gpu = event.device_type == DeviceType.CUDA and not event.is_user_annotation
            return is_on_gpu and _ON_GPU in name.lower()
        return name.startswith(_ON_HOST)


def _origin_ns(events: Iterable[Any], anchors: Sequence[tuple[int, int]]) -> int:
    """Return the zero of the profiler's time on this clock, from the anchor with the shortest duration."""
    best_index = min(range(len(anchors)), key=lambda index: anchors[index][1] - anchors[index][0])
    name = _ANCHOR.format(best_index)
    anchor = next((event for event in events if event.name == name), None)
    if anchor is None:
        raise ValueError("the profiler has not recorded its anchors")
    before_ns, after_ns = anchors[best_index]
    middle_us: float = (anchor.time_range.start + anchor.time_range.end) / 2
    return round((before_ns + after_ns) / 2 - 1000 * middle_us)


def _collective(event: Any, origin_ns: int) -> Collective:
    return Collective(
        name=event.name[:_MAX_NAME_LENGTH],
        began_ns=origin_ns + round(1000 * event.time_range.start),
        ended_ns=origin_ns + round(1000 * event.time_range.end),
        num_bytes=_num_bytes(event),
    )


def _num_bytes(event: Any) -> int | None:
    """Return the bytes of the collective's tensor; None for several tensors or an unknown type."""
    shapes, dtypes = event.input_shapes or [], event.input_dtypes or []
    if len(shapes) != 1 or len(dtypes) != 1 or dtypes[0] not in _NUM_BYTES:
        return None
    if not all(isinstance(size, int) for size in shapes[0]):
        return None
    num_values: int = math.prod(shapes[0])
    return _NUM_BYTES[dtypes[0]] * num_values
