"""Mistakes with samplers and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trainers.contract import heartbeats
from trainers.data.dataset import Augmentation, Split
from trainers.data.micro_batches import MicroBatch, ShardedBatches
from trainers.evaluation import Evaluator
from trainers.registry import register_mistake
from trainers.report.metrics import Evaluation


@register_mistake(
    "no_sampler",
    label="No sampler",
    description="Every rank trains on all samples, in the same order: N ranks do the same work N times.",
)
class WholeDataSet(ShardedBatches):
    """Gives every rank all samples, as if it were the only one."""

    def __init__(
        self, num_samples: int, batch_size: int, *, replica: int, num_replicas: int, **options: Any
    ) -> None:
        del replica, num_replicas
        super().__init__(num_samples, batch_size, replica=0, num_replicas=1, **options)


@register_mistake(
    "no_set_epoch",
    label="No set_epoch",
    description="Every epoch has the order of the first one, so each rank always gets the same samples.",
)
class SameOrderEachEpoch(ShardedBatches):
    """Uses the shuffle of the first epoch in every epoch."""

    def set_epoch(self, epoch: int) -> None:
        del epoch
        super().set_epoch(0)


@register_mistake(
    "uneven_batches",
    label="Uneven batches",
    description="The last rank has one batch less per epoch, so the others wait forever for its gradients.",
    hangs=True,
)
class UnevenBatches(ShardedBatches):
    """Skips the last rank's last batch; then all ranks meet in a barrier at the end of the epoch."""

    def __init__(
        self, num_samples: int, batch_size: int, *, replica: int, num_replicas: int, **options: Any
    ) -> None:
        super().__init__(num_samples, batch_size, replica=replica, num_replicas=num_replicas, **options)
        self._has_one_less = replica == num_replicas - 1
        # Use a separate group, because in the training group the barrier could match the last step's
        # collective. The group never times out, so that the timeout of the training group determines when the
        # run fails.
        self._group = dist.new_group(backend="gloo", timeout=heartbeats.FOR_EVER)

    def starting_at(self, first_sample: int) -> Iterator[MicroBatch]:
        num_done = first_sample
        for micro_batch in super().starting_at(first_sample):
            if self._has_one_less and num_done + micro_batch.num_global >= self._num_samples:
                break
            yield micro_batch
            if micro_batch.is_last:
                num_done += micro_batch.num_global
        dist.barrier(self._group)


class _Padded(Split):
    """A split padded with its first samples to a multiple of the number of ranks."""

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
    description="If the validation samples cannot be divided evenly, the first samples count twice.",
)
class Padding(Evaluator):
    """Evaluates the samples that torch's `DistributedSampler` (drop_last=False) gives each rank."""

    def evaluate(
        self, split: Split, *, batch_size: int, should_interrupt: Callable[[], bool]
    ) -> Evaluation | None:
        padded = _Padded(split, self.strategy.num_replicas)
        return super().evaluate(padded, batch_size=batch_size, should_interrupt=should_interrupt)
