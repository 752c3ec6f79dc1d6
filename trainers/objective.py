"""What is minimised and what is measured, per task; evaluation over a whole split, exact over ranks."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from trainers.data import LANGUAGE_MODELLING, Split
from trainers.distributed import World


def loss(scores: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of (…, classes) scores against (…) class numbers."""
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction=reduction)


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, *, task: str, batch_size: int, world: World
) -> tuple[float, dict[str, float]]:
    """Return the mean loss and the metrics over the whole split; every rank must call it.

    Each rank takes every world-size-th sample, so no sample is counted twice and none is left out.
    `model` is the bare network: the DDP wrapper would wait for ranks that have a batch less.
    """
    for buffer in model.buffers():
        # DDP evens out running statistics only in its own forward: rank 0's count.
        dist.broadcast(buffer, src=0)
    model.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=world.device)
    mine = torch.arange(world.rank, len(split), world.world_size, device=world.device)
    for indices in mine.split(batch_size):
        inputs, targets = split.batch(indices)
        scores = model(inputs)
        totals[0] += loss(scores, targets, reduction="sum")
        totals[1] += (scores.argmax(-1) == targets).sum()
        totals[2] += targets.numel()
    model.train()
    total_loss, num_correct, count = world.sum(totals).tolist()
    mean_loss = total_loss / count
    if task == LANGUAGE_MODELLING:
        return mean_loss, {
            "perplexity": math.exp(min(mean_loss, 700.0)),
            "bits_per_character": mean_loss / math.log(2),
            "accuracy": num_correct / count,
        }
    return mean_loss, {"accuracy": num_correct / count}
