"""The optimizer, its parameter groups and the learning rate of each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainers.checkpoint.snapshot import Progress
from trainers.contract.config import Config, schedule
from trainers.parallel.strategy import Strategy


def make_optimizer(config: Config, strategy: Strategy) -> torch.optim.Optimizer:
    """Create the configured optimizer for the strategy's network, with fused kernels if torch has them."""
    groups = parameter_groups(strategy.network, config.weight_decay)
    rate = {"lr": config.learning_rate}
    if config.optimizer == "sgd":
        # torch rejects Nesterov without momentum.
        nesterov = config.nesterov and config.momentum > 0
        arguments: dict[str, Any] = {"momentum": config.momentum, "nesterov": nesterov}
        return strategy.make_optimizer(torch.optim.SGD, groups, **rate, **arguments, fused=True)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return strategy.make_optimizer(kind, groups, **rate, fused=True)


def parameter_groups(network: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: matrices and kernels with weight decay, vectors (norms, biases) without."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class LearningRate:
    """Sets the learning rate of each step; the command `set_lr` replaces the peak rate of the schedule.

    Args:
        num_replicas: number of replicas, which scales the peak.
        num_shards: number of replicas that each epoch's samples are distributed over; None: all.

    Attributes:
        num_steps, steps_per_epoch: length of the schedule.
    """

    def __init__(
        self, config: Config, *, num_replicas: int, num_train: int, num_shards: int | None = None
    ) -> None:
        num_shards = num_replicas if num_shards is None else num_shards
        self._config = config
        self._peak = config.peak_learning_rate(num_replicas)
        self._global_batch = config.global_batch(num_shards)
        self.num_replicas = num_replicas
        self.num_steps = config.num_steps(num_train, num_shards)
        self.steps_per_epoch = config.steps_per_epoch(num_train, num_shards)
        self._is_over_by_steps = self.num_steps < self.steps_per_epoch * config.num_epochs

    def at(self, step: int, peak: float | None) -> float:
        """Return the rate of a step (1-based); `peak` is the rate set during the run, if any."""
        factor = schedule.factor_at(
            self._config, step, num_steps=self.num_steps, steps_per_epoch=self.steps_per_epoch
        )
        return (self._peak if peak is None else peak) * factor

    def position(self, progress: Progress) -> int:
        """Return the position in the schedule: the current step, in global batches of the current size.

        It is `step` + 1, unless the run was resumed with another global batch size. In that case, the
        position depends on the number of processed samples if epochs end the run or the schedule is by epoch,
        and on the steps if `max_steps` ends the run.
        """
        if self._is_over_by_steps and self._config.lr_schedule != "step":
            return progress.step + 1
        steps = -(-progress.samples_in_epoch // self._global_batch)
        return progress.epoch * self.steps_per_epoch + steps + 1

    def apply(self, optimizer: torch.optim.Optimizer, progress: Progress) -> float:
        """Set the optimizer's rate for the current step and return it."""
        rate = self.at(self.position(progress), progress.learning_rate)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate
