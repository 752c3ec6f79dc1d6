"""The training objective of each task, and exact evaluation of a split over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers import registry
from trainers.data.dataset import DataSpec, Split
from trainers.engines import heartbeats
from trainers.engines.heartbeats import EVALUATING
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy, weighted
from trainers.report.metrics import Evaluation

MOST_EVALUATED = 256
WIDENING = 8
MOST_SCORES = 2**26  # 256 MB in fp32
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
        return weighted(self.training_loss(output, targets), weight)

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
    balance = torch.zeros((), device=sent.device)
    for layer_sent, layer_probabilities in zip(sent, probabilities, strict=True):
        balance = balance + len(layer_sent) * (layer_sent * layer_probabilities).sum()
    return BALANCE_WEIGHT * balance / len(sent)


def mean_over_ranks(values: Tensor, weight: float) -> Tensor:
    """Return the mean over the samples of all ranks' micro-batches. Every rank must call it.

    The balance loss is a product of two means. If all ranks use the global batch's value for the one without
    a gradient, the mean of the ranks' losses and gradients equals that of a single process.

    Args:
        values: mean over this rank's samples.
        weight: proportional to the number of its samples; 0 if it has none.
    """
    summed = torch.cat([values.detach().flatten() * weight, values.new_full((1,), weight)])
    dist.all_reduce(summed)
    # All weights are 0 in the rehearsal before a checkpoint is loaded.
    return (summed[:-1] / summed[-1].clamp_min(1e-12)).view_as(values)


def evaluation_batch(spec: DataSpec, batch_size: int) -> int:
    """Return the batch size for evaluation: larger than in training, within a safe amount of memory.

    Without gradients a sample needs a fraction of its memory in training. For a language model the scores
    (vocabulary × length) dominate and set the limit.
    """
    fitting = MOST_SCORES // max(1, registry.task(spec.task).num_scores(spec))
    return max(batch_size, min(MOST_EVALUATED, WIDENING * batch_size, fitting))


@torch.no_grad()
def evaluate(
    strategy: Strategy,
    objective: Objective,
    spec: DataSpec,
    split: Split,
    *,
    batch_size: int,
    world: World,
    should_break_off: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Return the mean loss and the metrics over a split. Every rank must call it.

    Each replica evaluates every n-th sample, so that each sample counts exactly once. All ranks run the same
    number of batches, because a sharded model needs all ranks in each forward pass; a replica that has run
    out of samples runs one that is not counted.

    Args:
        should_break_off: called after each batch; must return the same value on all ranks.

    Returns:
        None if it was interrupted.
    """
    network = strategy.network
    share_running_statistics(network)
    network.eval()
    meter = registry.task(spec.task).meter(spec, world.device)
    first = min(strategy.replica, len(split))
    mine = torch.arange(first, len(split), strategy.num_replicas, device=split.device)
    most = -(-len(split) // strategy.num_replicas)
    for start in range(0, most, batch_size):
        indices = mine[start : start + batch_size]
        is_real = len(indices) > 0
        inputs, targets = split.batch(
            indices if is_real else torch.zeros(1, dtype=torch.long, device=split.device)
        )
        scores = strategy.scores(split.prepare(inputs.to(world.device))).float()
        if is_real and strategy.counts:
            targets = targets.to(world.device)
            meter.add(scores, targets, objective.summed_loss(scores, targets))
        heartbeats.write_heartbeat(EVALUATING)
        if should_break_off():
            network.train()
            return None
    network.train()
    return meter.result(world)


class Evaluator:
    """Evaluates a strategy's network on all ranks; a class, so that mistakes can replace it."""

    def __init__(self, strategy: Strategy, objective: Objective, spec: DataSpec, world: World) -> None:
        self.strategy = strategy
        self.objective = objective
        self.spec = spec
        self.world = world

    def evaluate(
        self, split: Split, *, batch_size: int, should_break_off: Callable[[], bool]
    ) -> Evaluation | None:
        """Return the mean loss and the metrics over a split; see `evaluate`."""
        return evaluate(
            self.strategy,
            self.objective,
            self.spec,
            split,
            batch_size=batch_size,
            world=self.world,
            should_break_off=should_break_off,
        )


def share_running_statistics(network: nn.Module) -> None:
    """Broadcast rank 0's buffers: DDP synchronises running statistics only in its own forward pass."""
    if dist.is_initialized():
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
