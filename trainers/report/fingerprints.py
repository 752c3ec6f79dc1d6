"""Compares the ranks' replicas now and then: a hash of each rank's weights, and how far they lie apart."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.contract.config import Config
from trainers.engines.heartbeats import beats
from trainers.engines.heartbeats.heartbeat_board import REPORTING
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.report.reporter import NullReporter

LARGEST_SHARE_OF_TIME = 0.005
AT_MOST_EVERY_S = 1.0
MAX_STEPS_BETWEEN = 10**6
CHUNK_ON_CPU, CHUNK_ON_GPU = 2**16, 2**22
_MASK = 2**64 - 1
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class NullFingerprints:
    """Compares nothing: there is one rank, or ranks hold different parts, or nobody wants it."""

    def after_step(self, step: int) -> None:
        """Compare the replicas after this step, if it is time; every rank calls it."""


class Fingerprints(NullFingerprints):
    """Compares whole replicas, at steps that all ranks agree on, and reports what it finds.

    Args:
        every_steps: at which steps; None: as often as takes `LARGEST_SHARE_OF_TIME`, measured by rank 0.
    """

    def __init__(
        self, network: nn.Module, world: World, reporter: NullReporter, every_steps: int | None
    ) -> None:
        self._parameters = [parameter.detach() for parameter in network.parameters()]
        self._world = world
        self._reporter = reporter
        self._every_steps = every_steps
        self._hash = WeightHash(self._parameters, world.device)
        self._hash.of_weights().item()  # the first one takes longer
        self._cost_s = math.inf
        self._next_step = 1
        self._taken: tuple[int, float] | None = None  # the step of the newest, and when it began

    @classmethod
    def of(cls, config: Config, strategy: Strategy, reporter: NullReporter) -> NullFingerprints:
        """Return what compares the replicas of a wrapped network, where there are such."""
        world, every_steps = strategy.world, config.fingerprint_every_steps
        if world.world_size == 1 or not strategy.holds_replica or every_steps == 0:
            return NullFingerprints()
        return cls(strategy.network, world, reporter, every_steps)

    def after_step(self, step: int) -> None:
        if step < self._next_step if self._every_steps is None else step % self._every_steps:
            return
        beats.beat(REPORTING)
        began = time.perf_counter()
        hashes = self._exchange(step, began)
        are_alike = len(set(hashes)) == 1
        distances = [0.0] * len(hashes) if are_alike else self._distances()
        self._reporter.event(
            "fingerprints",
            step=step,
            hashes=[f"{number & _MASK:016x}" for number in hashes],
            distances=[round_to_six_digits(distance) for distance in distances],
        )
        self._taken = step, began
        # One that waited long for another rank says little of what the next will take.
        self._cost_s = min(time.perf_counter() - began, 2 * self._cost_s)

    def _exchange(self, step: int, now: float) -> list[int]:
        """Tell each other the hashes, and agree on the next step, which rank 0 chooses."""
        message = torch.zeros(self._world.world_size + 1, dtype=torch.int64, device=self._world.device)
        message[self._world.rank] = self._hash.of_weights()
        if self._world.is_main:
            message[-1] = self._steps_until_next(step, now)
        *hashes, num_steps = self._world.sum(message).tolist()
        self._next_step = step + num_steps
        return hashes

    def _steps_until_next(self, step: int, now: float) -> int:
        if self._taken is None or step <= self._taken[0]:
            return 1
        step_s = max(1e-6, (now - self._taken[1]) / (step - self._taken[0]))
        wanted_s = max(AT_MOST_EVERY_S, self._cost_s / LARGEST_SHARE_OF_TIME)
        return max(1, min(MAX_STEPS_BETWEEN, round(wanted_s / step_s)))

    def _distances(self) -> list[float]:
        """Return each rank's ‖weights - weights of rank 0‖ / ‖weights of rank 0‖."""
        world = self._world
        squares = torch.zeros(2, dtype=torch.float64, device=world.device)
        for parameter in self._parameters:
            of_rank_0 = parameter.clone()
            dist.broadcast(of_rank_0, src=0)
            squares[0] += (parameter.double() - of_rank_0.double()).square().sum()
            squares[1] += of_rank_0.double().square().sum()
        message = torch.zeros(world.world_size, dtype=torch.float64, device=world.device)
        message[world.rank] = (squares[0] / squares[1]).sqrt()
        distances: list[float] = world.sum(message).tolist()
        return distances


class WeightHash:
    """A sum of all weights' bits, each times an odd number of its own, in whole numbers that wrap around.

    The same bits give the same hash on every device; another bit anywhere gives another one. It is no
    secret, and no proof against somebody who wants two models to look alike.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device) -> None:
        self._chunk = CHUNK_ON_GPU if device.type == "cuda" else CHUNK_ON_CPU
        self._bits = [piece for parameter in parameters for piece in _as_bits(parameter).split(self._chunk)]
        generator = torch.Generator().manual_seed(20_190_606)
        longest = max((len(piece) for piece in self._bits), default=1)
        kinds = {piece.dtype for piece in self._bits}
        factors = torch.randint(2**62, (longest,), generator=generator) * 2 + 1
        # Cut to the width of the bits: an odd number stays odd.
        self._factors = {kind: factors.to(kind).to(device) for kind in kinds}
        self._of_pieces = (torch.randint(2**62, (len(self._bits),), generator=generator) * 2 + 1).to(device)

    def of_weights(self) -> Tensor:
        """Return the hash of the weights as they are now, a whole number of 64 bits on their device."""
        sums = [
            (piece * self._factors[piece.dtype][: len(piece)]).sum(dtype=torch.int64) for piece in self._bits
        ]
        return (torch.stack(sums) * self._of_pieces).sum()


def _as_bits(parameter: Tensor) -> Tensor:
    """Return the memory of a parameter as whole numbers, in its own order: a view where it has no gaps."""
    try:
        flat = parameter.view(-1)
    except RuntimeError:  # in memory the dimensions come in another order (channels last)
        strides = parameter.stride()
        order = sorted(range(parameter.dim()), key=lambda at: -strides[at])
        flat = parameter.permute(order).view(-1)
    return flat.view(_BITS[flat.element_size()])


def round_to_six_digits(number: float) -> float | None:
    """Return a number as it is written into an event; None for one that is no number."""
    return float(f"{number:.6g}") if math.isfinite(number) else None
