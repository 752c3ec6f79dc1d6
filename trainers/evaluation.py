"""Exact evaluation of a split over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from trainers import registry
from trainers.contract import heartbeats
from trainers.contract.heartbeats import EVALUATING
from trainers.data.dataset import DataSpec, Split
from trainers.optimisation.objective import Objective
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.report.metrics import Evaluation

MAX_BATCH_SIZE = 256
EVALUATION_BATCH_FACTOR = 8
MAX_SCORES = 2**26  # 256 MB in fp32


def evaluation_batch(spec: DataSpec, batch_size: int) -> int:
    """Return the batch size for evaluation: larger than in training, within a safe amount of memory.

    Without gradients a sample needs a fraction of its memory in training. For a language model the scores
    (vocabulary × length) dominate and set the limit.
    """
    max_fitting = MAX_SCORES // max(1, registry.task(spec.task).num_scores(spec))
    return max(batch_size, min(MAX_BATCH_SIZE, EVALUATION_BATCH_FACTOR * batch_size, max_fitting))


@torch.no_grad()
def evaluate(
    strategy: Strategy,
    objective: Objective,
    spec: DataSpec,
    split: Split,
    *,
    batch_size: int,
    world: World,
    should_interrupt: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Return the mean loss and the metrics over a split. Every rank must call it.

    Each replica evaluates every n-th sample, so that each sample counts exactly once. All ranks run the same
    number of batches, because a sharded model needs all ranks in each forward pass; a replica that has no
    samples left runs a batch that is not counted.

    Args:
        should_interrupt: called after each batch; must return the same value on all ranks.

    Returns:
        None if `should_interrupt` interrupted the evaluation.
    """
    network = strategy.network
    share_running_statistics(network)
    network.eval()
    meter = registry.task(spec.task).meter(spec, world.device)
    first_index = min(strategy.replica, len(split))
    rank_indices = torch.arange(first_index, len(split), strategy.num_replicas, device=split.device)
    max_samples = -(-len(split) // strategy.num_replicas)
    for start in range(0, max_samples, batch_size):
        indices = rank_indices[start : start + batch_size]
        is_real = len(indices) > 0
        inputs, targets = split.batch(
            indices if is_real else torch.zeros(1, dtype=torch.long, device=split.device)
        )
        scores = strategy.scores(split.prepare(inputs.to(world.device))).float()
        if is_real and strategy.counts:
            targets = targets.to(world.device)
            meter.add(scores, targets, objective.summed_loss(scores, targets))
        heartbeats.write_heartbeat(EVALUATING)
        if should_interrupt():
            network.train()
            return None
    network.train()
    return meter.result(world)


class Evaluator:
    """Evaluates a strategy's network on all ranks; a class, so that a `Mistake` can replace it."""

    def __init__(self, strategy: Strategy, objective: Objective, spec: DataSpec, world: World) -> None:
        self.strategy = strategy
        self.objective = objective
        self.spec = spec
        self.world = world

    def evaluate(
        self, split: Split, *, batch_size: int, should_interrupt: Callable[[], bool]
    ) -> Evaluation | None:
        """Return the mean loss and the metrics over a split; see `evaluate`."""
        return evaluate(
            self.strategy,
            self.objective,
            self.spec,
            split,
            batch_size=batch_size,
            world=self.world,
            should_interrupt=should_interrupt,
        )


def share_running_statistics(network: nn.Module) -> None:
    """Broadcast rank 0's buffers: DDP synchronises running statistics only in its own forward pass."""
    if dist.is_initialized():
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
