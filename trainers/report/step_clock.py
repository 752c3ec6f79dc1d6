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
        self._previous_all_reduce = all_reduce_times()
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
        self._gradients_ready: Any = None
        self._gradients = _GradientsOnGpu() if self._is_gpu and not is_alone else None
        self._started_s = self._fetching_since = self._ended_s = time.perf_counter()
        first_parameter = next(
            (parameter for parameter in network.parameters() if parameter.requires_grad), None
        )
        # Not on a GPU: autograd's thread calls the hook, and switching threads costs the host 40 us per step.
        if measures_wait and not is_alone and first_parameter is not None:
            first_parameter.register_post_accumulate_grad_hook(self._mark_gradients_ready)

    def begin_step(self, *, is_reported: bool, excluded_s: float | None = None) -> None:
        """Begin a step.

        Args:
            is_reported: the step ends with a report.
            excluded_s: seconds since the previous step to exclude; None: all of them.
        """
        now = self._fetching_since = time.perf_counter()
        self._started_s = now if excluded_s is None else self._ended_s + excluded_s
        self.data_time_s = 0.0
        self._marks = []
        self._gradients_ready = None
        self._is_measured = is_reported or not self._is_gpu
        if self._is_measured:
            self._time.restart()
        self._mark("begin")

    def exclude(self, excluded_s: float) -> None:
        """Exclude time during which training stood still; fetching the next batch begins now."""
        self._started_s += excluded_s
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
            self._gradients_ready = self._marks[-1][1]
        self._fetching_since = time.perf_counter()

    def optimizer_done(self) -> None:
        """Record that the weights have been updated."""
        self._mark("optimizer")

    def end_step(self) -> None:
        """End the step; on a GPU, read the times of an earlier one."""
        self._ended_s = time.perf_counter()
        self.step_time_s = self._ended_s - self._started_s
        if self._unread is not None and self._unread[1].query():
            times = self._unread[0]()
            self.newest = lambda: times
            self._unread = None
        if not self._is_measured:
            return
        all_reduce = self._all_reduce_of_step()
        compute_times = partial(
            _part_times, self._marks, self._gradients_ready, self.step_time_s, self._time, all_reduce
        )
        if not self._is_gpu:
            self.newest = compute_times
            return
        self._unread = compute_times, self._marks[-1][1]
        # Two sets of events: the host reuses one while the GPU may not have passed the other.
        self._time, self._other_time = self._other_time, self._time

    def _all_reduce_of_step(self) -> AllReduceTimes | None:
        now, previous = self._all_reduce_times(), self._previous_all_reduce
        self._previous_all_reduce = now
        return None if now is None or previous is None else now.since(previous)

    def gradients_done(self) -> int | None:
        """Return the number of backward passes whose gradients the GPU has finished; thread-safe.

        None if unknown: on the CPU, with one rank, or if the first layer is frozen.
        """
        return None if self._gradients is None else self._gradients.num_done()

    def _mark(self, part: str) -> None:
        if self._is_measured:
            self._marks.append((part, self._time.now()))

    def _mark_gradients_ready(self, _parameter: Tensor) -> None:
        if self._gradients is not None:
            self._gradients.note_pass()
        if self._is_measured:
            self._gradients_ready = self._time.now()


def _part_times(
    marks: Sequence[tuple[str, Any]],
    gradients_ready: Any,
    step_time_s: float,
    clock: _HostTime | _GpuTime,
    all_reduce: AllReduceTimes | None,
) -> StepTimes:
    """Return the times of a step's parts, given its boundaries."""
    elapsed_s = clock.elapsed_s
    parts = {"data": 0.0, "forward": 0.0, "left out": 0.0, "backward": 0.0, "optimizer": 0.0}
    for (_, earlier), (part, later) in pairwise(marks):
        parts[part] += elapsed_s(earlier, later)
    (_, start), *_, (_, backward_end), (_, end) = marks
    is_divided = parts["forward"] > 0
    is_wait_known = is_divided and gradients_ready is not None
    wait_time_s = elapsed_s(gradients_ready, backward_end) if is_wait_known else None
    return StepTimes(
        step_time_s=elapsed_s(start, end) if clock.is_device else step_time_s,
        data_time_s=parts["data"],
        forward_time_s=parts["forward"] if is_divided else None,
        backward_time_s=parts["backward"] if is_divided else None,
        optimizer_time_s=parts["optimizer"],
        wait_time_s=wait_time_s if all_reduce is None or all_reduce.waited_s is None else all_reduce.waited_s,
        all_reduce_time_s=None if all_reduce is None else all_reduce.spent_s,
        hidden_time_s=None if all_reduce is None else all_reduce.hidden_s,
    )


class _GradientsOnGpu:
    """Counts the backward passes that a GPU has finished; the host may have launched many more.

    If one GPU hangs, all hosts stop at the same call, but the other GPUs have finished more passes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[torch.cuda.Event] = deque()
        self._unused_events: list[torch.cuda.Event] = []
        self._num_done: int | None = None

    def note_pass(self) -> None:
        """Note that the host has launched another backward pass."""
        self.num_done()
        event = self._unused_events.pop() if self._unused_events else torch.cuda.Event()
        event.record()
        with self._lock:
            self._num_done = self._num_done or 0
            self._pending.append(event)

    def num_done(self) -> int | None:
        """Return how many passes the GPU has finished, or None before the first; does not block."""
        with self._lock:
            while self._pending and self._pending[0].query():
                self._unused_events.append(self._pending.popleft())
                assert self._num_done is not None
                self._num_done += 1
            return self._num_done


class _HostTime:
    """Timestamps of this process's clock."""

    is_device = False

    now = staticmethod(time.perf_counter)

    def restart(self) -> None:
        """Do nothing: a timestamp is a number."""

    def elapsed_s(self, earlier: float, later: float) -> float:
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

    def elapsed_s(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> float:
        elapsed_ms: float = earlier.elapsed_time(later)
        return elapsed_ms / 1000
