"""Validation through `DistributedSampler`: the first samples come again, until all ranks have as many."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trainers.data.dataset import Augmentation, Split
from trainers.optimisation.objective import Evaluator
from trainers.registry import register_mistake
from trainers.report.metrics import Evaluation


class _Padded(Split):
    """A split that goes on from its beginning, to a length that divides by the ranks."""

    def __init__(self, split: Split, num_ranks: int) -> None:
        self._split = split
        self._length = -(-len(split) // num_ranks) * num_ranks
        self.device = split.device

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._split.batch(indices % len(self._split))

    def prepare(self, inputs: Tensor, augmentation: Augmentation | None = None) -> Tensor:
        return self._split.prepare(inputs, augmentation)


@register_mistake(
    "padded_validation",
    label="Validation with repeated samples",
    description="Where the validation samples do not divide by the ranks, the first ones count twice.",
)
class Padding(Evaluator):
    """Evaluates what torch's `DistributedSampler` (drop_last=False) would give each rank."""

    def evaluate(
        self, split: Split, *, batch_size: int, should_break_off: Callable[[], bool]
    ) -> Evaluation | None:
        padded = _Padded(split, self.strategy.num_replicas)
        return super().evaluate(padded, batch_size=batch_size, should_break_off=should_break_off)
