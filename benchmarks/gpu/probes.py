"""Probes that run inside a rank between steps, written as generators."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import psutil
import torch

from benchmarks.gpu import traces
from benchmarks.gpu.counts import NUM_BLOCKS, WARM_UP, StepCounter, bare_step, host_ns
from trainers.contract.commands import Command
from trainers.data.loading import Batch, Loader
from trainers.job import Job
from trainers.report import telemetry
from trainers.report.observer import Observer
from trainers.report.step_meter import MAX_STEPS_PER_REPORT, StepMeter
from trainers.report.telemetry import Telemetry

PROBED_STEPS = 3
SETTLING_STEPS = 2
LEAST_REPORTS = 2
NUM_HOST_PAIRS = 15
MOST_TRACED_STEPS = 4 * MAX_STEPS_PER_REPORT

Notes = Mapping[str, Any]
Probe = Generator[None, None, Notes]


class ProbedLoader(Loader):
    """Wraps a loader and resumes the probe before each step."""

    def __init__(self, loader: Loader, go_on: Callable[[], None]) -> None:
        self._loader = loader
        self._go_on = go_on

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch."""
        self._loader.set_epoch(epoch)

    def starting_at(self, first_sample: int) -> Iterator[Batch]:
        """Yield the epoch's micro-batches."""
        for batch in self._loader.starting_at(first_sample):
            self._go_on()
            yield batch


class SwitchedMeter(StepMeter):
    """Reports only if `is_on`.

    The flag belongs to the class, because a process is one rank of one run.
    """

    is_on: ClassVar[bool] = True

    def is_report_due(self) -> bool:
        return self.is_on and super().is_report_due()

    def add_loss(self, share: torch.Tensor) -> None:
        if self.is_on:
            super().add_loss(share)

    def step_done(self, **about: Any) -> Command | None:
        return super().step_done(**about) if self.is_on else None


class NewestTelemetry(Telemetry):
    """Telemetry that code other than its creator can find and stop."""

    newest: ClassVar[Telemetry]

    def start(self) -> None:
        NewestTelemetry.newest = self
        super().start()


def memory(job: Job, *, num_steps: int) -> Probe:
    """Measure the share of the device's memory in use after some steps, by all processes."""
    yield from _pass(num_steps)
    if job.world.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(job.world.device)
        return {"share_in_use": 1 - free / total}
    peak = telemetry.peak_memory_bytes(job.world.device)
    return {"share_in_use": peak / psutil.virtual_memory().total}


def waits(job: Job, *, warm_up: int, num_steps: int, trace: str) -> Probe:
    """Trace steps with torch's profiler, and count calls with which the host waits for the GPU.

    Args:
        num_steps: minimum number of traced steps; tracing continues until both kinds of steps occurred.

    Raises:
        RuntimeError: fewer than two steps with a report occurred within the capacity of a trace.
    """
    yield from _pass(warm_up)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if job.world.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities)
    profiler.start()
    seen: Counter[str] = Counter()
    while seen.total() < num_steps or seen[traces.REPORTED] < LEAST_REPORTS:
        if seen.total() == MOST_TRACED_STEPS:
            profiler.stop()
            raise RuntimeError(f"of {seen.total()} traced steps {seen[traces.REPORTED]} had a report")
        has_report = job.meter.is_report_due() or job.meter.has_unread_report
        name = traces.REPORTED if has_report else traces.QUIET
        seen[name] += 1
        with torch.profiler.record_function(name):
            yield
    profiler.stop()
    profiler.export_chrome_trace(trace)
    content = json.loads(Path(trace).read_text(encoding="utf-8"))["traceEvents"]
    return {name: found.as_json() for name, found in traces.count_waits(content).items()}


def watching(job: Job, *, warm_up: int, num_pairs: int, seconds: float) -> Probe:
    """Time blocks of steps alternately with and without telemetry, reports and events."""
    yield from _pass(warm_up)
    step_s = yield from _timed(job, PROBED_STEPS)
    num_steps = max(PROBED_STEPS, math.ceil(seconds / step_s))
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(num_pairs):
        for is_on in (True, False) if number % 2 == 0 else (False, True):
            switch(job, is_on=is_on)
            yield from _pass(SETTLING_STEPS)
            found[is_on].append((yield from _timed(job, num_steps)))
    switch(job, is_on=True)
    return {"on_step_s": found[True], "off_step_s": found[False], "steps_a_block": num_steps}


def switch(job: Job, *, is_on: bool) -> None:
    """Start or stop sampling, reporting and writing events."""
    if is_on == SwitchedMeter.is_on:
        return
    SwitchedMeter.is_on = is_on
    if is_on:
        assert isinstance(job.observer, Observer)
        NewestTelemetry(job.world, job.reporter, job.observer.live_progress).start()
    else:
        NewestTelemetry.newest.stop()


def _pass(num_steps: int) -> Generator[None]:
    for _ in range(num_steps):
        yield


def _timed(job: Job, num_steps: int) -> Generator[None, None, float]:
    """Return the seconds per step, averaged over this number; samples of the model's output are postponed."""
    _wait_for_device(job)
    began = time.perf_counter()
    for _ in range(num_steps):
        job.meter.note_sample(0.0)
        yield
    _wait_for_device(job)
    return (time.perf_counter() - began) / num_steps


def _wait_for_device(job: Job) -> None:
    if job.world.device.type == "cuda":
        torch.cuda.synchronize(job.world.device)


def counts(job: Job, *, num_steps: int) -> Probe:
    """Count launches, bytes and peak memory of some steps, then compare host time with a bare loop."""
    counter = StepCounter(num_steps)
    while True:
        if counter.is_between_blocks:  # often enough: samples are taken every ten seconds
            job.meter.note_sample(0.0)
        counter.go_on()
        if counter.found is not None:
            break
        yield
    return counter.found | (yield from _host_times(job, max(1, num_steps // NUM_BLOCKS)))


def _host_times(job: Job, num_steps: int) -> Generator[None, None, dict[str, float]]:
    """Return microseconds of processor time per step, of the job and of a bare loop in the same process.

    Their blocks of steps alternate, so that other load on the machine affects both: the times are those of
    the cheapest blocks, the ratio is the median over pairs of neighbouring blocks.
    """
    step = bare_step(job.config, job.world.device)
    for _ in range(WARM_UP):
        step()
    yield from _pass(SETTLING_STEPS)
    ours: list[int] = []
    bare: list[int] = []
    for number in range(NUM_HOST_PAIRS):
        for times in (ours, bare) if number % 2 == 0 else (bare, ours):
            job.meter.note_sample(0.0)
            torch.cuda.synchronize(job.world.device)
            began_ns = host_ns()
            if times is ours:
                yield from _pass(num_steps)
            else:
                for _ in range(num_steps):
                    step()
            times.append(host_ns() - began_ns)
    ratio = median(one / other for one, other in zip(ours, bare, strict=True))
    return {
        "host_us": round(min(ours) / num_steps / 1000, 1),
        "bare_host_us": round(min(bare) / num_steps / 1000, 1),
        "host_ratio": round(ratio, 3),
    }


PROBES: Mapping[str, Callable[..., Probe]] = {
    "memory": memory,
    "waits": waits,
    "watching": watching,
    "counts": counts,
}


def stepped(probe: Probe, done: Callable[[Notes], None]) -> Callable[[], None]:
    """Return a function that advances a probe by one step and passes its results to `done`."""

    def run() -> Generator[None]:
        done((yield from probe))
        while True:
            yield

    return partial(next, run())
