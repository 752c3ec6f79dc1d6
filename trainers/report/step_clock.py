"""Times the parts of a rank's step: data, forward, backward (including waiting) and the optimizer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainers.parallel.strategy import AllReduceTimes


class StepTimes(NamedTuple):
    """Seconds of one step and of its parts; None if not measured.

    The all-reduce is part of backward: the time that is neither hidden behind computation nor spent waiting
    for other ranks is spent moving and adding gradients. The rest of a step is spent on reports and similar
    work.
    """

    step_time_s: float | None = None
    data_time_s: float | None = None
    forward_time_s: float | None = None
    backward_time_s: float | None = None
    optimizer_time_s: float | None = None
    wait_time_s: float | None = None
    all_reduce_time_s: float | None = None
    hidden_time_s: float | None = None


class StepClock:
    """Measures how long the parts of a step take; called at the end of each part.

    On the CPU every step is measured. On a GPU the host only launches work, so CUDA events mark the
    boundaries, only in steps that end with a report. The events are read at the end of a later step, after
    the GPU has passed them, so that the host never waits for them.

    Backward reaches the first layer last, so the hook of the first parameter marks the end of a rank's own
    gradients; from there to the end of backward it waits for other ranks.

    Args:
        measures_wait: see `Strategy`.
        is_alone: True with one rank, which never waits: `wait_time_s` is 0 without a hook.
        divides_passes: forward and backward run one after the other; in a pipeline they are interleaved.
        all_reduce_times: returns the accumulated times of averaging gradients, or None if not measured.
    Attributes:
        step_time_s, data_time_s: the host's time for the last step, and for fetching data within it.
        newest: function that computes the times of the last measured step; thread-safe.
    """

    def __init__(
        self,
        network: nn.Module,
        device: torch.device,
        *,
        measures_wait: bool,
        is_alone: bool = False,
        divides_passes: bool = True,
        all_reduce_times: Callable[[], AllReduceTimes | None] = lambda: None,
    ) -> None:
        self._all_reduce_times = all_reduce_times
        self._reduced_before = all_reduce_times()
        self._divides_passes = divides_passes
        self._never_waits = measures_wait and is_alone
        self.step_time_s = self.data_time_s = 0.0
        self.newest: Callable[[], StepTimes] = StepTimes
        self._is_gpu = device.type == "cuda"
        self._time = _GpuTime() if self._is_gpu else _HostTime()
        self._other_time = _GpuTime() if self._is_gpu else self._time
        # A measured step and its last event, which the GPU may not have passed yet.
        self._unread: tuple[Callable[[], StepTimes], torch.cuda.Event] | None = None
        self._is_measured = False
        self._marks: list[tuple[str, Any]] = []
        self._own_done: Any = None
        self._gradients = _GradientsOnGpu() if self._is_gpu and not is_alone else None
        self._began = self._fetching_since = self._ended = time.perf_counter()
        first = next((parameter for parameter in network.parameters() if parameter.requires_grad), None)
        # Not on a GPU: autograd's thread calls the hook, and switching threads costs the host 40 us per step.
        if measures_wait and not is_alone and first is not None:
            first.register_post_accumulate_grad_hook(self._own_gradients_done)

    def begin_step(self, *, is_reported: bool, stood_still_s: float | None = None) -> None:
        """Begin a step.

        Args:
            is_reported: the step ends with a report.
            stood_still_s: seconds since the previous step to exclude; None: all of them.
        """
        now = self._fetching_since = time.perf_counter()
        self._began = now if stood_still_s is None else self._ended + stood_still_s
        self.data_time_s = 0.0
        self._marks = []
        self._own_done = None
        self._is_measured = is_reported or not self._is_gpu
        if self._is_measured:
            self._time.restart()
        self._mark("begin")

    def leave_out(self, stood_still_s: float) -> None:
        """Exclude time during which training stood still; fetching the next batch begins now."""
        self._began += stood_still_s
        self._mark("left out")
        self._fetching_since = time.perf_counter()

    def data_fetched(self) -> None:
        """Note that a batch has been fetched."""
        self.data_time_s += time.perf_counter() - self._fetching_since
        self._mark("data")

    def forward_done(self) -> None:
        """Note that the loss has been computed; ignored if forward and backward are interleaved."""
        if self._divides_passes:
            self._mark("forward")

    def backward_done(self) -> None:
        """Note the end of backward; either the optimizer follows or another batch is fetched."""
        self._mark("backward")
        if self._never_waits and self._is_measured:
            self._own_done = self._marks[-1][1]
        self._fetching_since = time.perf_counter()

    def optimizer_done(self) -> None:
        """Note that the weights have been updated."""
        self._mark("optimizer")

    def end_step(self) -> None:
        """End the step; on a GPU, read the times of an earlier one."""
        self._ended = time.perf_counter()
        self.step_time_s = self._ended - self._began
        if self._unread is not None and self._unread[1].query():
            times = self._unread[0]()
            self.newest = lambda: times
            self._unread = None
        if not self._is_measured:
            return
        reduced = self._reduced_in_step()
        divided = partial(_divided, self._marks, self._own_done, self.step_time_s, self._time, reduced)
        if not self._is_gpu:
            self.newest = divided
            return
        self._unread = divided, self._marks[-1][1]
        # Two sets of events: the host reuses one while the GPU may not have passed the other.
        self._time, self._other_time = self._other_time, self._time

    def _reduced_in_step(self) -> AllReduceTimes | None:
        now, before = self._all_reduce_times(), self._reduced_before
        self._reduced_before = now
        return None if now is None or before is None else now.since(before)

    def gradients_done(self) -> int | None:
        """Return the number of backward passes whose gradients the GPU has finished; thread-safe.

        None if unknown: on the CPU, with one rank, or if the first layer is frozen.
        """
        return None if self._gradients is None else self._gradients.num_done()

    def _mark(self, part: str) -> None:
        if self._is_measured:
            self._marks.append((part, self._time.now()))

    def _own_gradients_done(self, _parameter: Tensor) -> None:
        if self._gradients is not None:
            self._gradients.handed_out()
        if self._is_measured:
            self._own_done = self._time.now()


def _divided(
    marks: Sequence[tuple[str, Any]],
    own_done: Any,
    step_time_s: float,
    moments: _HostTime | _GpuTime,
    reduced: AllReduceTimes | None,
) -> StepTimes:
    """Return the times of a step's parts, given its boundaries."""
    between = moments.between
    parts = {"data": 0.0, "forward": 0.0, "left out": 0.0, "backward": 0.0, "optimizer": 0.0}
    for (_, earlier), (part, later) in pairwise(marks):
        parts[part] += between(earlier, later)
    (_, began), *_, (_, backward_ended), (_, ended) = marks
    is_divided = parts["forward"] > 0
    is_wait_known = is_divided and own_done is not None
    wait_time_s = between(own_done, backward_ended) if is_wait_known else None
    return StepTimes(
        step_time_s=between(began, ended) if moments.is_device else step_time_s,
        data_time_s=parts["data"],
        forward_time_s=parts["forward"] if is_divided else None,
        backward_time_s=parts["backward"] if is_divided else None,
        optimizer_time_s=parts["optimizer"],
        wait_time_s=wait_time_s if reduced is None or reduced.waited_s is None else reduced.waited_s,
        all_reduce_time_s=None if reduced is None else reduced.spent_s,
        hidden_time_s=None if reduced is None else reduced.hidden_s,
    )


class _GradientsOnGpu:
    """Counts the backward passes that a GPU has finished; the host may have launched many more.

    If one GPU hangs, all hosts stop at the same call, but the other GPUs have finished more passes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: deque[torch.cuda.Event] = deque()
        self._spare: list[torch.cuda.Event] = []
        self._num_done: int | None = None

    def handed_out(self) -> None:
        """Note that the host has launched another backward pass."""
        self.num_done()
        event = self._spare.pop() if self._spare else torch.cuda.Event()
        event.record()
        with self._lock:
            self._num_done = self._num_done or 0
            self._under_way.append(event)

    def num_done(self) -> int | None:
        """Return how many passes the GPU has finished, or None before the first; does not block."""
        with self._lock:
            while self._under_way and self._under_way[0].query():
                self._spare.append(self._under_way.popleft())
                assert self._num_done is not None
                self._num_done += 1
            return self._num_done


class _HostTime:
    """Timestamps of this process's clock."""

    is_device = False

    now = staticmethod(time.perf_counter)

    def restart(self) -> None:
        """Do nothing: a timestamp is a number."""

    def between(self, earlier: float, later: float) -> float:
        return later - earlier


class _GpuTime:
    """CUDA events as timestamps; the events are reused for the next step."""

    is_device = True

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []
        self._num_used = 0

    def restart(self) -> None:
        self._num_used = 0

    def now(self) -> torch.cuda.Event:
        if self._num_used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[self._num_used]
        self._num_used += 1
        event.record()
        return event

    def between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        elapsed_ms: float = earlier.elapsed_time(later)
        return elapsed_ms / 1000
