"""Tests of fingerprints: the hash of weights, and the steps at which replicas are compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.fakes import LoneWorld, world_of
from trainers.contract.config import Config
from trainers.parallel.strategy import Strategy
from trainers.report.observer import Fingerprints, NullFingerprints, WeightHash
from trainers.report.reporter import NullReporter

CPU = torch.device("cpu")


class Notebook(NullReporter):
    """Keeps all events."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def event(self, kind: str, **fields: Any) -> None:
        self.written.append({"kind": kind, **fields})


class Replicas(Strategy):
    """A strategy in which every rank holds a replica."""

    holds_replica = True


def hash_of(*tensors: torch.Tensor) -> int:
    return int(WeightHash(tensors, CPU).of_weights())


def weights(dtype: torch.dtype = torch.float32, size: int = 1000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bit", [0, 7, 15])
def test_a_single_bit_anywhere_gives_another_hash(dtype: torch.dtype, bit: int) -> None:
    tensor = weights(dtype)
    before = hash_of(tensor)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    for place in (0, 500, 999):
        tensor.view(kind)[place] ^= (1 << bit) - (1 << 16 if kind is torch.int16 and bit == 15 else 0)
        assert hash_of(tensor) != before
        tensor.view(kind)[place] ^= (1 << bit) - (1 << 16 if kind is torch.int16 and bit == 15 else 0)
    assert hash_of(tensor) == before


def subject_of(world: LoneWorld, notebook: Notebook, every_steps: int | None) -> NullFingerprints:
    strategy = Replicas(Config(nproc_per_node=world.world_size), world)
    strategy.wrap(nn.Linear(3, 2))
    config = Config(nproc_per_node=world.world_size, fingerprint_every_steps=every_steps)
    return Fingerprints.of(config, strategy, notebook)


class Echo(LoneWorld):
    """Two ranks with the same weights."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        values[1] = values[0]
        return values


ECHO = Echo(rank=0, local_rank=0, world_size=2, node=0, device=CPU)


def test_replicas_are_compared_every_so_many_steps() -> None:
    notebook = Notebook()
    subject = subject_of(ECHO, notebook, 4)
    for step in range(1, 13):
        subject.after_step(step)
    assert [event["step"] for event in notebook.written] == [4, 8, 12]
    for event in notebook.written:
        first, second = event["hashes"]
        assert first == second and len(first) == 16
        assert event["distances"] == [0.0, 0.0]


def test_ranks_that_hold_parts_are_not_compared() -> None:
    strategy = Strategy(Config(), world_of(2))
    strategy.wrap(nn.Linear(3, 2))
    assert type(Fingerprints.of(Config(), strategy, NullReporter())) is NullFingerprints
