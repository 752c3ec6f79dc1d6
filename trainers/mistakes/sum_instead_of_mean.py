"""Gradients are added up over the ranks and never divided: each step is N times as long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainers.registry import register_mistake
from trainers.strategies.ddp import Ddp


@register_mistake(
    "sum_instead_of_mean",
    label="Sum instead of mean",
    description="Gradients of all ranks are added up, not averaged: N times as long a step. Adam hides it.",
)
class Summing(Ddp):
    """Takes the division back that DDP's average has in it."""

    @contextlib.contextmanager
    def gradient_sync(self, *, enabled: bool) -> Iterator[None]:
        with super().gradient_sync(enabled=enabled):
            yield
        if enabled:
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.world.world_size)
