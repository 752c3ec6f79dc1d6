"""The training objective of each task."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from trainers import registry
from trainers.data.dataset import DataSpec
from trainers.parallel.strategy import apply_weight

BALANCE_WEIGHT = 0.01

# Scores; (scores, auxiliary loss); or (scores, sent, probabilities) of a mixture of experts.
Output = Tensor | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


class Objective:
    """The loss of a task over the targets of a batch.

    Args:
        label_smoothing: fraction of the target distributed evenly over all classes.
        num_ranks: number of ranks that share a global batch; all of them call the objective together.
    """

    def __init__(self, spec: DataSpec, *, label_smoothing: float = 0.0, num_ranks: int = 1) -> None:
        self._task = registry.task(spec.task)
        self._label_smoothing = label_smoothing
        self._num_ranks = num_ranks

    def training_loss(self, output: Output, targets: Tensor) -> Tensor:
        """Return the mean loss of this rank's batch, including the model's auxiliary loss."""
        if isinstance(output, Tensor):
            return self._loss(output, targets, "mean", self._label_smoothing)
        auxiliary = output[1] if len(output) == 2 else balance_loss(output[1], output[2])
        return self._loss(output[0], targets, "mean", self._label_smoothing) + auxiliary

    def needs_other_ranks(self, output: Output) -> bool:
        """True if the loss of this output depends on values from other ranks."""
        return isinstance(output, tuple) and len(output) == 3 and self._num_ranks > 1

    def __call__(self, output: Output, targets: Tensor, weight: float) -> Tensor:
        """Return a micro-batch's share of the step's loss; see `MicroBatch.weight`."""
        if isinstance(output, tuple) and len(output) == 3 and self._num_ranks > 1:
            output = (output[0], mean_over_ranks(output[1], weight), output[2])
        return apply_weight(self.training_loss(output, targets), weight)

    def summed_loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Return the loss summed over the targets, without smoothing; float64 makes the order irrelevant."""
        return self._loss(scores, targets, "none", 0.0).double().sum()

    def _loss(self, scores: Tensor, targets: Tensor, reduction: str, smoothing: float) -> Tensor:
        return self._task.loss(scores, targets, reduction=reduction, label_smoothing=smoothing)


def balance_loss(sent: Tensor, probabilities: Tensor) -> Tensor:
    """Return the load-balancing loss of a mixture of experts (Fedus et al. 2021, equation 4).

    Per layer: number of experts × sum over experts of (share of tokens × mean probability), which is 1 if
    balanced. Averaged over the layers and multiplied by `BALANCE_WEIGHT`.

    Args:
        sent, probabilities: (layers, experts); `sent` has no gradient.
    """
    total = torch.zeros((), device=sent.device)
    for layer_sent, layer_probabilities in zip(sent, probabilities, strict=True):
        total = total + len(layer_sent) * (layer_sent * layer_probabilities).sum()
    return BALANCE_WEIGHT * total / len(sent)


def mean_over_ranks(values: Tensor, weight: float) -> Tensor:
    """Return the mean over the samples of all ranks' micro-batches. Every rank must call it.

    The balance loss is a product of two means. If all ranks use the global batch's value for the factor
    without a gradient, the mean of the ranks' losses and gradients equals the result of a single process.

    Args:
        values: mean over this rank's samples.
        weight: proportional to this rank's number of samples; 0 if it has none.
    """
    summed = torch.cat([values.detach().flatten() * weight, values.new_full((1,), weight)])
    dist.all_reduce(summed)
    # All weights are 0 in the rehearsal before a checkpoint is loaded.
    return (summed[:-1] / summed[-1].clamp_min(1e-12)).view_as(values)
