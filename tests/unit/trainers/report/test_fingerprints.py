"""Tests of fingerprints: the hash of weights, and the steps at which replicas are compared."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.fakes import LoneWorld, world_of
from trainers.contract.config import Config
from trainers.parallel.strategy import Strategy
from trainers.report import observer
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


def test_the_order_of_weights_and_of_chunks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "CHUNK_ON_CPU", 64)
    tensor = weights()
    assert hash_of(tensor) != hash_of(tensor.flip(0))
    swapped = torch.cat([tensor[64:128], tensor[:64], tensor[128:]])
    assert hash_of(tensor) != hash_of(swapped)
    assert hash_of(tensor, tensor * 2) != hash_of(tensor * 2, tensor)


def test_the_sign_of_zero_is_a_bit_too() -> None:
    assert hash_of(torch.tensor([0.0])) != hash_of(torch.tensor([-0.0]))


def test_weights_in_another_layout_are_hashed_where_they_lie() -> None:
    kernel = nn.Conv2d(3, 4, 3).weight.detach().to(memory_format=torch.channels_last)
    subject = WeightHash([kernel], CPU)
    before = int(subject.of_weights())
    kernel[1, 2, 0, 0] += 1
    assert int(subject.of_weights()) != before


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


def test_by_default_it_is_as_often_as_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step and a comparison take 10 ms each, so 1/200 of the time is one comparison every 2 s."""
    clock = [0.0]
    monkeypatch.setattr(observer.time, "perf_counter", lambda: clock[0])
    notebook = Notebook()
    subject = subject_of(ECHO, notebook, None)
    assert isinstance(subject, Fingerprints)
    exchange = subject._exchange

    def costly(step: int, now: float) -> list[int]:
        clock[0] += 0.01
        return exchange(step, now)

    monkeypatch.setattr(subject, "_exchange", costly)
    for step in range(1, 1001):
        clock[0] += 0.01
        subject.after_step(step)
    compared = [event["step"] for event in notebook.written]
    assert compared[:2] == [1, 2]
    assert all(95 <= later - earlier <= 210 for earlier, later in pairwise(compared[1:]))
    assert len(compared) * 0.01 <= 0.01 * clock[0]


@pytest.mark.parametrize(("num_ranks", "every_steps"), [(1, None), (2, 0)])
def test_nothing_is_compared_where_nobody_could_or_would(num_ranks: int, every_steps: int | None) -> None:
    subject = subject_of(world_of(num_ranks), Notebook(), every_steps)
    assert type(subject) is NullFingerprints


def test_ranks_that_hold_parts_are_not_compared() -> None:
    strategy = Strategy(Config(), world_of(2))
    strategy.wrap(nn.Linear(3, 2))
    assert type(Fingerprints.of(Config(), strategy, NullReporter())) is NullFingerprints
