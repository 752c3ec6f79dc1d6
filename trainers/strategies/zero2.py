"""ZeRO stage 2 (Rajbhandari et al. 2019) with FSDP2: weights stay gathered from forward to backward."""

from __future__ import annotations

from typing import ClassVar

from trainers.parallel.strategy import MemoryShares
from trainers.registry import register_strategy
from trainers.strategies.zero3 import FullySharded


@register_strategy(
    "zero2",
    label="FSDP (ZeRO-2)",
    description="Gradients and optimizer state are sharded over the ranks; the weights are complete during "
    "a step.",
    sharing="Each rank keeps its part of gradients and optimizer state; the weights are gathered once "
    "for every step.",
)
class Zero2(FullySharded):
    """FSDP2 that gathers each weight once per step instead of twice."""

    frees_after_forward: ClassVar[bool] = False
    memory_shares: ClassVar[MemoryShares] = MemoryShares(gradients="all", optimizer_state="all")
