"""Observers of a rank's training loop, and comparison of replicas by fingerprints."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.contract import heartbeats
from trainers.contract.config import Config
from trainers.contract.heartbeats import COMPUTING, FETCHING, REPORTING, STEPPING
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.report.reporter import NullReporter
from trainers.report.step_clock import StepClock
from trainers.report.telemetry import Holdings, LiveProgress

MAX_TIME_SHARE = 0.005
MIN_INTERVAL_S = 1.0
MAX_INTERVAL_STEPS = 10**6
CHUNK_ON_CPU, CHUNK_ON_GPU = 2**16, 2**22
_MASK = 2**64 - 1
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NullFingerprints:
    """Compares nothing: for one rank, for ranks that hold different parts, or if comparing is turned off."""

    def after_step(self, step: int) -> None:
        """Compare the replicas after this step if a comparison is due; every rank must call it."""


class Fingerprints(NullFingerprints):
    """Compares complete replicas at steps that all ranks agree on, and reports the result.

    Args:
        every_steps: steps between comparisons; None: chosen such that comparing takes at most
            `MAX_TIME_SHARE` as measured by rank 0.
    """

    def __init__(
        self, network: nn.Module, world: World, reporter: NullReporter, every_steps: int | None
    ) -> None:
        self._parameters = [parameter.detach() for parameter in network.parameters()]
        self._world = world
        self._reporter = reporter
        self._every_steps = every_steps
        self._hash = WeightHash(self._parameters, world.device)
        self._hash.compute().item()  # warm-up: the first hash takes longer
        self._cost_s = math.inf
        self._next_step = 1
        self._last_comparison: tuple[int, float] | None = None  # step and start time of the last comparison

    @classmethod
    def of(cls, config: Config, strategy: Strategy, reporter: NullReporter) -> NullFingerprints:
        """Return the fingerprints of a wrapped network, or a null object if nothing can be compared."""
        world, every_steps = strategy.world, config.fingerprint_every_steps
        if world.world_size == 1 or not strategy.holds_replica or every_steps == 0:
            return NullFingerprints()
        return cls(strategy.network, world, reporter, every_steps)

    def after_step(self, step: int) -> None:
        if step < self._next_step if self._every_steps is None else step % self._every_steps:
            return
        heartbeats.write_heartbeat(REPORTING)
        started_s = time.perf_counter()
        hashes = self._exchange(step, started_s)
        are_equal = len(set(hashes)) == 1
        distances = [0.0] * len(hashes) if are_equal else self._distances()
        self._reporter.event(
            "fingerprints",
            step=step,
            hashes=[f"{number & _MASK:016x}" for number in hashes],
            distances=[round_to_six_digits(distance) for distance in distances],
        )
        self._last_comparison = step, started_s
        # At most double the estimate, because the time includes waiting for a slow rank.
        self._cost_s = min(time.perf_counter() - started_s, 2 * self._cost_s)

    def _exchange(self, step: int, now: float) -> list[int]:
        """Exchange the hashes, and agree on the step of the next comparison, which rank 0 chooses."""
        message = torch.zeros(self._world.world_size + 1, dtype=torch.int64, device=self._world.device)
        message[self._world.rank] = self._hash.compute()
        if self._world.is_main:
            message[-1] = self._steps_until_next(step, now)
        *hashes, num_steps = self._world.sum(message).tolist()
        self._next_step = step + num_steps
        return hashes

    def _steps_until_next(self, step: int, now: float) -> int:
        if self._last_comparison is None or step <= self._last_comparison[0]:
            return 1
        step_s = max(1e-6, (now - self._last_comparison[1]) / (step - self._last_comparison[0]))
        interval_s = max(MIN_INTERVAL_S, self._cost_s / MAX_TIME_SHARE)
        return max(1, min(MAX_INTERVAL_STEPS, round(interval_s / step_s)))

    def _distances(self) -> list[float]:
        """Return each rank's ‖weights - weights of rank 0‖ / ‖weights of rank 0‖."""
        world = self._world
        squares = torch.zeros(2, dtype=torch.float64, device=world.device)
        for parameter in self._parameters:
            main_parameter = parameter.clone()
            dist.broadcast(main_parameter, src=0)
            squares[0] += (parameter.double() - main_parameter.double()).square().sum()
            squares[1] += main_parameter.double().square().sum()
        message = torch.zeros(world.world_size, dtype=torch.float64, device=world.device)
        message[world.rank] = (squares[0] / squares[1]).sqrt()
        distances: list[float] = world.sum(message).tolist()
        return distances


class WeightHash:
    """A sum of all weights' bits, each multiplied by its own odd number, in integers that wrap around.

    The same bits give the same hash on every device; flipping any bit changes the hash. It is not
    cryptographic: two different models with the same hash can be constructed.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device) -> None:
        self._chunk = CHUNK_ON_GPU if device.type == "cuda" else CHUNK_ON_CPU
        self._bits = [chunk for parameter in parameters for chunk in _as_bits(parameter).split(self._chunk)]
        generator = torch.Generator().manual_seed(20_190_606)
        longest = max((len(chunk) for chunk in self._bits), default=1)
        dtypes = {chunk.dtype for chunk in self._bits}
        factors = torch.randint(2**62, (longest,), generator=generator) * 2 + 1
        # Truncated to the width of the bits; an odd number stays odd.
        self._factors = {dtype: factors.to(dtype).to(device) for dtype in dtypes}
        self._chunk_factors = (torch.randint(2**62, (len(self._bits),), generator=generator) * 2 + 1).to(
            device
        )

    def compute(self) -> Tensor:
        """Return the hash of the current weights: one int64 on their device."""
        sums = [
            (chunk * self._factors[chunk.dtype][: len(chunk)]).sum(dtype=torch.int64) for chunk in self._bits
        ]
        return (torch.stack(sums) * self._chunk_factors).sum()


def _as_bits(parameter: Tensor) -> Tensor:
    """Return a parameter's memory as integers in memory order: a view if the memory has no gaps."""
    try:
        flat = parameter.view(-1)
    except RuntimeError:  # the dimensions are permuted in memory (channels last)
        strides = parameter.stride()
        order = sorted(range(parameter.dim()), key=lambda dim: -strides[dim])
        flat = parameter.permute(order).view(-1)
    return flat.view(_BITS[flat.element_size()])


def round_to_six_digits(number: float) -> float | None:
    """Return a number rounded for an event, or None for NaN and infinity."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


class NullObserver:
    """Observes nothing: the bare loop, for benchmarks and tests.

    Attributes:
        step_time_s, data_time_s: the host's time for the last step, and for fetching data within it.
        is_recording: True if a recorder has replaced the usual observer.
    """

    step_time_s = 0.0
    data_time_s = 0.0
    is_recording = False

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        """Note that fetching the first batch of a step begins now.

        Args:
            is_reported: the step ends with a report.
            is_first_of_epoch: exclude the time since the previous step (evaluations, checkpoints).
        """

    def data_fetched(self) -> None:
        """Note that a batch has been fetched."""

    def forward_done(self) -> None:
        """Note that the loss has been computed."""

    def backward_done(self, *, is_last: bool) -> None:
        """Note the end of backward; after the last micro-batch of a step the optimizer follows."""

    def optimizer_done(self) -> None:
        """Record that the weights have been updated."""

    def end_step(self, step: int) -> None:
        """Note that this step is done."""

    def exclude_time(self) -> contextlib.AbstractContextManager[None]:
        """Return a context whose time is excluded from all steps; nested contexts are counted once."""
        return contextlib.nullcontext()

    def resume_step(self) -> None:
        """Note that fetching the next micro-batch begins now, after other work."""

    def end_recording(self, reason: str) -> None:
        """End a recording early with the steps it has; every rank must call it."""


class Observer(NullObserver):
    """Measures times, sends heartbeats to the supervisor, and stores the last step for the sampler.

    Attributes:
        live_progress: the values that the sampler reads.
    """

    def __init__(
        self, clock: StepClock, live_progress: LiveProgress, holdings: Holdings | None = None
    ) -> None:
        self._clock = clock
        self.live_progress = live_progress
        # Counted in the first step, then released.
        self._holdings = holdings
        live_progress.gradients_done = clock.gradients_done
        self._excluded_s = 0.0

    @classmethod
    def of(
        cls, strategy: Strategy, optimizer: torch.optim.Optimizer, live_progress: LiveProgress
    ) -> Observer:
        """Return the observer of a wrapped network's training."""
        clock = StepClock(
            strategy.network,
            strategy.world.device,
            measures_wait=strategy.measures_wait,
            is_alone=strategy.world.world_size == 1,
            divides_passes=strategy.divides_passes,
            all_reduce_times=lambda: strategy.all_reduce_times,
        )
        return cls(clock, live_progress, Holdings(network=strategy.network, optimizer=optimizer))

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        heartbeats.write_heartbeat(FETCHING)
        excluded_s, self._excluded_s = self._excluded_s, 0.0
        self._clock.begin_step(is_reported=is_reported, excluded_s=None if is_first_of_epoch else excluded_s)

    def data_fetched(self) -> None:
        self._clock.data_fetched()
        heartbeats.write_heartbeat(COMPUTING)

    def forward_done(self) -> None:
        self._clock.forward_done()
        if self._holdings is not None:
            self._holdings.forward_done()

    def backward_done(self, *, is_last: bool) -> None:
        self._clock.backward_done()
        if self._holdings is not None:
            self._holdings.backward_done()
        heartbeats.write_heartbeat(STEPPING if is_last else FETCHING)

    def optimizer_done(self) -> None:
        self._clock.optimizer_done()

    def end_step(self, step: int) -> None:
        if self._holdings is not None:
            self._holdings.step_done()
            self.live_progress.holdings, self._holdings = self._holdings, None
            self.live_progress.sample_requested.set()  # a short run may end within the next second
        self._clock.end_step()
        self.step_time_s, self.data_time_s = self._clock.step_time_s, self._clock.data_time_s
        self.live_progress.record_step(step, self._clock.newest)

    @contextlib.contextmanager
    def exclude_time(self) -> Iterator[None]:
        previous_s, started_s = self._excluded_s, time.perf_counter()
        try:
            yield
        finally:
            self._excluded_s = previous_s + time.perf_counter() - started_s

    def resume_step(self) -> None:
        excluded_s, self._excluded_s = self._excluded_s, 0.0
        self._clock.exclude(excluded_s)
