"""Recordings of steps on each rank."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from trainers.contract import heartbeats, recordings
from trainers.contract.heartbeats import SAVING
from trainers.contract.rundir import RunDirectory
from trainers.files import private_files
from trainers.files.json_files import write_json_atomically
from trainers.machine.os_errors import explain
from trainers.parallel.process_group import World, gather_json
from trainers.parallel.strategy import Averaged, Bucket, Round, Strategy
from trainers.recording import profiled, whole
from trainers.recording.profiled import Collective, CollectiveProfile
from trainers.report.observer import NullObserver
from trainers.report.reporter import NullReporter


class HostMoments:
    """Timestamps of this process's monotonic clock."""

    now = staticmethod(time.monotonic_ns)

    def when_ns(self, moment: int) -> int:
        return moment


class GpuMoments:
    """CUDA events as timestamps.

    The first event is recorded while the GPU is idle, so that its time is also the host's; the others are
    measured relative to it. `when_ns` waits for the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self._start_event = torch.cuda.Event(enable_timing=True)
        self._start_event.record()
        self._start_ns = time.monotonic_ns()

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def when_ns(self, moment: torch.cuda.Event) -> int:
        moment.synchronize()
        elapsed_ms: float = self._start_event.elapsed_time(moment)
        return self._start_ns + round(1e6 * elapsed_ms)


Moments = HostMoments | GpuMoments
Part = tuple[str, int, int]


def build_rank_notes(
    steps: Sequence[StepRecord],
    moments: Moments,
    *,
    all_reduces: Sequence[Averaged],
    collectives: Sequence[Collective],
    buckets: Sequence[Bucket],
) -> dict[str, Any]:
    """Return `steps`, each with its parts, all-reduces of buckets and other collectives, and `buckets`.

    Args:
        all_reduces: the all-reduces of a strategy that records them itself.
        collectives, buckets: for other strategies, the profiler's collectives, and DDP's buckets of one step.
    """
    used_buckets = list(dict.fromkeys(operation.bucket for operation in all_reduces)) or list(buckets)
    return {
        "steps": [_step(step, moments, all_reduces, collectives, used_buckets) for step in steps],
        "algorithms": sorted(
            {
                operation.algorithm
                for operation in collectives
                if operation.is_all_reduce and operation.algorithm
            }
        ),
        "buckets": [[list(parameter) for parameter in bucket] for bucket in used_buckets],
    }


def _step(
    step_record: StepRecord,
    moments: Moments,
    all_reduces: Iterable[Averaged],
    collectives: Iterable[Collective],
    buckets: Sequence[Bucket],
) -> dict[str, Any]:
    times_ns = [
        moments.when_ns(step_record.began),
        *(moments.when_ns(moment) for _, moment in step_record.marks),
    ]
    names = [part for part, _ in step_record.marks]
    parts = [
        (name, start_ns, end_ns) for name, (start_ns, end_ns) in zip(names, pairwise(times_ns), strict=True)
    ]
    start_ns, end_ns = times_ns[0], times_ns[-1]
    reduces = [
        _reduce_record(
            buckets.index(operation.bucket), operation.began_ns, operation.ended_ns, operation.rounds
        )
        for operation in all_reduces
        if start_ns <= operation.began_ns < end_ns
    ]
    step_collectives = [operation for operation in collectives if start_ns <= operation.began_ns < end_ns]
    if not reduces and (bucket_reduces := _match_buckets(step_collectives, parts, buckets)):
        # Limit the end to backward's, which waits for all collectives; gloo's thread may record a later end.
        backward_end_ns = max(end_ns for name, _, end_ns in parts if name == "backward")
        reduces = [
            _reduce_record(index, operation.began_ns, min(operation.ended_ns, backward_end_ns), ())
            for index, operation in enumerate(bucket_reduces)
        ]
        step_collectives = [operation for operation in step_collectives if operation not in bucket_reduces]
    return {
        "step": step_record.step,
        "began": start_ns,
        "ended": end_ns,
        "parts": [list(part) for part in parts],
        "all_reduces": reduces,
        "collectives": [
            [operation.name, operation.began_ns, operation.ended_ns, operation.num_bytes]
            for operation in step_collectives
        ],
    }


def _match_buckets(
    collectives: Iterable[Collective], parts: Iterable[Part], buckets: Sequence[Bucket]
) -> list[Collective]:
    """Return the all-reduce of each bucket; empty if the numbers of all-reduces during backward and of
    buckets differ.

    DDP begins all-reduces in the order of its buckets, and averages nothing else during backward.
    """
    spans = [(start_ns, end_ns) for name, start_ns, end_ns in parts if name == "backward"]
    reduces = [
        collective
        for collective in collectives
        if collective.is_all_reduce
        and any(start_ns <= collective.began_ns < end_ns for start_ns, end_ns in spans)
    ]
    return reduces if len(reduces) == len(buckets) else []


def _reduce_record(bucket: int, began_ns: int, ended_ns: int, rounds: Sequence[Round]) -> Mapping[str, Any]:
    return {
        "bucket": bucket,
        "began": began_ns,
        "ended": ended_ns,
        "rounds": [list(timing) for timing in rounds],
    }


@dataclass(kw_only=True)
class StepRecord:
    """A recorded step with the ends of its parts; `step` is 0 until it is done."""

    began: Any
    marks: list[tuple[str, Any]] = field(default_factory=list)
    step: int = 0


class RecordingObserver(NullObserver):
    """Forwards all calls to the usual observer, and stores the timestamps of `num_steps` steps.

    Args:
        divides_passes: True if backward begins after forward has ended.
        on_full: called at the end of the last step.
    Attributes:
        steps: the completed steps.
    """

    is_recording = True

    def __init__(
        self,
        wrapped: NullObserver,
        moments: Moments,
        *,
        num_steps: int,
        divides_passes: bool,
        on_full: Callable[[str | None], None],
    ) -> None:
        self._wrapped = wrapped
        self._now = moments.now
        self._num_steps = num_steps
        self._divides_passes = divides_passes
        self._on_full = on_full
        self._current_step: StepRecord | None = None
        self.steps: list[StepRecord] = []

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        self._wrapped.begin_step(is_reported=is_reported, is_first_of_epoch=is_first_of_epoch)
        self._current_step = StepRecord(began=self._now())

    def data_fetched(self) -> None:
        self._mark("data")
        self._wrapped.data_fetched()

    def forward_done(self) -> None:
        if self._divides_passes:
            self._mark("forward")
        self._wrapped.forward_done()

    def backward_done(self, *, is_last: bool) -> None:
        self._mark("backward" if self._divides_passes else "both")
        self._wrapped.backward_done(is_last=is_last)

    def optimizer_done(self) -> None:
        self._mark("optimizer")
        self._wrapped.optimizer_done()

    def end_step(self, step: int) -> None:
        self._mark("other")
        self._wrapped.end_step(step)
        self.step_time_s, self.data_time_s = self._wrapped.step_time_s, self._wrapped.data_time_s
        if self._current_step is not None:
            self._current_step.step = step
            self.steps.append(self._current_step)
            self._current_step = None
        if len(self.steps) >= self._num_steps:
            self._on_full(None)

    def exclude_time(self) -> contextlib.AbstractContextManager[None]:
        return self._wrapped.exclude_time()

    def resume_step(self) -> None:
        self._mark("other")
        self._wrapped.resume_step()

    def end_recording(self, reason: str) -> None:
        self._on_full(reason)

    def _mark(self, part: str) -> None:
        if self._current_step is not None:
            self._current_step.marks.append((part, self._now()))


log = logging.getLogger(__name__)

NO_FILE = "no_recording"


class StepRecorder:
    """One rank's part of a recording; all ranks create it at the same step.

    Args:
        restore_observer: restores `wrapped` as the loop's observer.
    Attributes:
        observer: the loop's observer during the recording.
    """

    def __init__(
        self,
        *,
        run: RunDirectory,
        world: World,
        strategy: Strategy,
        reporter: NullReporter,
        wrapped: NullObserver,
        num_steps: int,
        restore_observer: Callable[[], None],
    ) -> None:
        self._run, self._world, self._strategy, self._reporter = run, world, strategy, reporter
        self._wrapped, self._restore_observer = wrapped, restore_observer
        self._started_s = time.perf_counter()
        self._problem: str | None = None
        self._all_reduces: list[Averaged] = []
        self._profile: CollectiveProfile | None = None
        self._strategy_records_buckets = strategy.note_buckets(self._all_reduces)
        if not self._strategy_records_buckets and world.world_size > 1:
            self._begin_profile()
        self._moments = GpuMoments(world.device) if world.device.type == "cuda" else HostMoments()
        self.observer = RecordingObserver(
            wrapped,
            self._moments,
            num_steps=num_steps,
            divides_passes=strategy.divides_passes,
            on_full=self._end,
        )

    def _begin_profile(self) -> None:
        try:
            self._profile = CollectiveProfile(self._world.device)
            self._profile.begin()
        except RuntimeError as error:
            self._profile, self._problem = None, f"the profiler could not start: {error}"

    def _end(self, reason: str | None) -> None:
        """Restore the usual observer, gather the notes and write them; every rank must call it."""
        self._restore_observer()
        with self._wrapped.exclude_time():
            heartbeats.write_heartbeat(SAVING)
            self._strategy.note_buckets(None)
            parts = gather_json(self._build_part(), self._world.slow_group)
            skews = profiled.measure_clock_skew(self._world, [part["node"] for part in parts])
            if self._world.is_main:
                self._write(parts, skews, reason)

    def _build_part(self) -> dict[str, Any]:
        collectives = self._collectives()
        buckets = () if self._strategy_records_buckets else self._strategy.gradient_buckets()
        return {
            "rank": self._world.rank,
            "node": self._world.node,
            "host": socket.gethostname(),
            "problem": self._problem,
            **build_rank_notes(
                self.observer.steps,
                self._moments,
                all_reduces=self._all_reduces,
                collectives=collectives,
                buckets=buckets,
            ),
        }

    def _collectives(self) -> list[Collective]:
        if self._profile is None:
            return []
        try:
            return self._profile.end()
        except (RuntimeError, ValueError, AttributeError) as error:
            self._problem = f"the profiler returned no usable events: {error}"
            return []

    def _write(
        self, parts: Sequence[dict[str, Any]], skews: dict[int, profiled.Skew], reason: str | None
    ) -> None:
        try:
            recording = whole.combine(parts, skews, self._strategy, self._world, ended_early=reason)
            path = recordings.path_of(self._run, recording["first_step"])
            private_files.require_ours(self._run.path)
            path.parent.mkdir(exist_ok=True)
            private_files.require_ours(path.parent)
            write_json_atomically(path, recording, indent=None)
        except (OSError, ValueError) as error:
            log.warning("no recording: %s", explain(error))
            message = f"The recorded steps could not be saved: {explain(error)}"
            self._reporter.warning(NO_FILE, message, "Training is not affected.")
            return
        self._reporter.event(
            "recording",
            step=recording["first_step"],
            num_steps=recording["num_steps"],
            path=str(path.relative_to(self._run.path)),
            size_bytes=path.stat().st_size,
            duration_s=round(time.perf_counter() - self._started_s, 4),
        )
