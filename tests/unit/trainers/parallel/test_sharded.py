"""Tests of norms and clipping of sharded gradients."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from tests.unit.fakes import world_of
from trainers.contract.config import Config
from trainers.parallel.sharded import ShardedStrategy


class Own(ShardedStrategy):
    """A strategy whose unsharded parameters are on one rank only."""

    owns_plain: ClassVar[bool] = True


def strategy_of(kind: type[ShardedStrategy], num_ranks: int) -> ShardedStrategy:
    """Return rank 0 of a strategy with three weights, one of which has no gradient."""
    torch.manual_seed(0)
    network = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2, bias=False)])
    for parameter in network[0].parameters():
        parameter.grad = torch.randn_like(parameter)
    strategy = kind(Config(nproc_per_node=num_ranks), world_of(num_ranks))
    strategy.network = strategy.model = network
    return strategy


def gradients(strategy: ShardedStrategy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in strategy.network.parameters() if p.grad is not None])


@pytest.mark.parametrize(("kind", "num_copies"), [(Own, 1), (ShardedStrategy, 4)])
def test_the_norm_counts_each_piece_once(kind: type[ShardedStrategy], num_copies: int) -> None:
    """The sum over ranks is replaced by the rank's own value.

    A parameter that all four ranks hold counts as a quarter on each.
    """
    strategy = strategy_of(kind, 4)
    expected = gradients(strategy).norm() / num_copies**0.5
    assert strategy.gradient_norm() == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(("max_norm", "is_clipped"), [(0.25, True), (1000.0, False)])
def test_clipping_scales_all_gradients_alike(max_norm: float, is_clipped: bool) -> None:
    strategy = strategy_of(Own, 2)
    before = gradients(strategy).clone()
    norm = strategy.clip_gradients(max_norm)
    assert norm == pytest.approx(float(before.norm()), rel=1e-6)
    after = gradients(strategy)
    if is_clipped:
        assert float(after.norm()) == pytest.approx(max_norm, rel=1e-4)
        assert torch.allclose(after / after.norm(), before / before.norm())
    else:
        assert torch.equal(after, before)
    assert strategy.network[1].weight.grad is None  # type: ignore[index,union-attr]
