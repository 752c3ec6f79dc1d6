"""The network is trained without DDP's all-reduce: each rank learns from its own samples alone."""

from __future__ import annotations

import contextlib

from trainers.contract.config.formulas import Check
from trainers.registry import register_mistake
from trainers.strategies.ddp import Ddp

DDP_COUNTS_ALL_REDUCES = Check(
    holds="not static_graph",
    field="static_graph",
    allowed="false with the mistake {mistake}: DDP counts the all-reduces that are left out",
)


@register_mistake(
    "no_gradient_averaging",
    label="Gradients are not averaged",
    description="Each rank takes its own gradients: the replicas begin alike and drift apart.",
    checks=(DDP_COUNTS_ALL_REDUCES,),
)
class NeverAveraging(Ddp):
    """Leaves the all-reduce out of every step (`no_sync`), not only where gradients are accumulated."""

    @property
    def all_reduce(self) -> None:
        """Nothing is averaged, over nothing."""
        return None

    def gradient_sync(self, *, enabled: bool) -> contextlib.AbstractContextManager[None]:
        del enabled
        return super().gradient_sync(enabled=False)
