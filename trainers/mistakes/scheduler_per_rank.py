"""The schedule moves on once for every rank in each step: it is over after one N-th of the run."""

from __future__ import annotations

from trainers.checkpoint.snapshot import Progress
from trainers.contract.config.formulas import Check
from trainers.optimisation.optimizers import LearningRate
from trainers.registry import register_mistake

THERE_IS_A_SCHEDULE = Check(
    holds="lr_schedule != 'constant' or warmup_steps > 0 or warmup_ratio > 0",
    field="lr_schedule",
    allowed="one that changes the learning rate, with the mistake {mistake}",
)


@register_mistake(
    "scheduler_per_rank",
    label="The schedule steps once a rank",
    description="The learning rate follows its schedule as many times too fast as there are ranks.",
    checks=(THERE_IS_A_SCHEDULE,),
)
class TooFast(LearningRate):
    """Counts a step once for every rank."""

    def position(self, progress: Progress) -> int:
        return (super().position(progress) - 1) * self.num_replicas + 1
