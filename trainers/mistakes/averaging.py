"""Mistakes in averaging gradients and in the learning rate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainers.checkpoint.snapshot import Progress
from trainers.contract.config.options import Check
from trainers.optimisation.optimizers import LearningRate
from trainers.registry import register_mistake
from trainers.strategies.ddp import Ddp

DDP_COUNTS_ALL_REDUCES = Check(
    holds="not static_graph",
    field="static_graph",
    allowed="false with the mistake {mistake}: DDP counts the skipped all-reduces",
)


@register_mistake(
    "no_gradient_averaging",
    label="Gradients are not averaged",
    description="Each rank uses only its own gradients: the replicas start equal and diverge.",
    checks=(DDP_COUNTS_ALL_REDUCES,),
)
class NeverAveraging(Ddp):
    """Skips the all-reduce in every step (`no_sync`), not only while gradients accumulate."""

    @property
    def all_reduce(self) -> None:
        """None: no gradients are averaged."""
        return None

    def gradient_sync(self, *, enabled: bool) -> contextlib.AbstractContextManager[None]:
        del enabled
        return super().gradient_sync(enabled=False)


@register_mistake(
    "sum_instead_of_mean",
    label="Sum instead of mean",
    description="Gradients are summed, not averaged: steps are N times as large. Adam hides the effect.",
)
class Summing(Ddp):
    """Multiplies DDP's averaged gradients by the number of ranks, which gives their sum."""

    @contextlib.contextmanager
    def gradient_sync(self, *, enabled: bool) -> Iterator[None]:
        with super().gradient_sync(enabled=enabled):
            yield
        if enabled:
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.world.world_size)


HAS_SCHEDULE = Check(
    holds="lr_schedule != 'constant' or warmup_steps > 0 or warmup_ratio > 0",
    field="lr_schedule",
    allowed="a schedule that changes the learning rate, with the mistake {mistake}",
)


@register_mistake(
    "scheduler_per_rank",
    label="The schedule steps once per rank",
    description="With N ranks, the learning rate follows its schedule N times too fast.",
    checks=(HAS_SCHEDULE,),
)
class ScheduleStepPerRank(LearningRate):
    """Advances the schedule once per rank in each step."""

    def position(self, progress: Progress) -> int:
        return (super().position(progress) - 1) * self.num_replicas + 1
