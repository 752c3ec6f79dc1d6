"""Tests of state copies in host memory: pinned memory, its timing, and the written content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.trainers.checkpoint.test_checkpoint import WORLD, Plain
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import HostCopies
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory

# Just above powers of two, where torch's own pinned allocator takes nearly twice the size.
SIZES = (4_100, 70_000, 1_050_000, 3, 0)


class Cuda:
    """A stand-in for the CUDA runtime that records registered memory by address."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.registered: dict[int, int] = {}
        self.calls: list[str] = []

    def cudaHostRegister(self, address: int, num_bytes: int, _flags: int) -> int:  # noqa: N802
        self.calls.append("register")
        if self.answer == 0:
            self.registered[address] = num_bytes
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.calls.append("unregister")
        del self.registered[address]
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: found)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    return found


def state_of(sizes: tuple[int, ...], start: float = 0.0) -> dict[str, Any]:
    weights = {f"{place}": torch.arange(size) + start for place, size in enumerate(sizes)}
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    model = weights | {"tied": weights["0"], "image": image}
    return {"model": model, "optimizer": {"step": torch.tensor(7.0)}}


def tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {f"{part}.{name}": value for part, values in state.items() for name, value in values.items()}


def assert_copied(taken: dict[str, Any], state: dict[str, Any]) -> None:
    copied, own = tensors(taken), tensors(state)
    assert copied.keys() == own.keys()
    for name, value in own.items():
        assert torch.equal(copied[name], value) and copied[name].stride() == value.stride()
        assert value.numel() == 0 or copied[name].data_ptr() != value.data_ptr()


def test_no_more_is_pinned_than_the_state_takes_and_only_once(cuda: Cuda) -> None:
    copies = HostCopies(torch.device("cuda"))
    assert cuda.registered == {}, "nothing before the first checkpoint"
    first, second = state_of(SIZES), state_of(SIZES, start=5.0)
    assert_copied(copies.take(first), first)
    own = {id(value): value.nbytes for value in tensors(first).values()}
    (pinned,) = cuda.registered.values()
    assert sum(own.values()) <= pinned <= 1.01 * sum(own.values())
    assert_copied(copies.take(second), second)
    assert cuda.calls == ["register"]


def test_a_state_of_another_size_gets_other_memory(cuda: Cuda) -> None:
    copies = HostCopies(torch.device("cuda"))
    copies.take(state_of((10,)))
    larger = state_of((5000,))
    assert_copied(copies.take(larger), larger)
    assert cuda.calls == ["register", "unregister", "register"] and len(cuda.registered) == 1


def test_where_cuda_refuses_the_copy_is_made_all_the_same(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def left_behind(*_: Any, device: torch.device) -> Tensor:
        asked.append(device)
        raise RuntimeError("CUDA error: out of memory")

    cuda.answer = 2
    monkeypatch.setattr(torch, "ones", left_behind)
    state = state_of(SIZES)
    assert_copied(HostCopies(torch.device("cuda")).take(state), state)
    assert "could not be pinned (CUDA error 2)" in caplog.text
    assert asked == [torch.device("cuda")], "the error that CUDA keeps is taken from it"


def test_each_copy_is_written_without_the_others(tmp_path: Path) -> None:
    taken = HostCopies(torch.device("cpu")).take(state_of(SIZES))
    torch.save(taken["optimizer"], tmp_path / "optimizer.pt")
    assert (tmp_path / "optimizer.pt").stat().st_size < 5000
    assert taken["model"]["tied"] is taken["model"]["0"]


@pytest.mark.parametrize(("device", "is_reserved"), [("cpu", True), ("cuda", False)])
def test_only_memory_that_is_not_pinned_is_reserved_at_the_first_step(
    run: RunDirectory, device: str, is_reserved: bool
) -> None:
    world = replace(WORLD, device=torch.device(device))
    network = nn.Linear(2, 2)
    strategy = Plain(Config(nproc_per_node=1), world)
    strategy.wrap(network)
    optimizer = torch.optim.AdamW(network.parameters())
    made = Checkpointer(
        run,
        world,
        strategy,
        optimizer,
        scaler=None,
        binding={},
        keep_last=None,
        keep_best=True,
        announce=lambda _: None,
    )
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert (made._preparation is not None) == is_reserved
    if made._preparation is not None:
        made._preparation.join()
    assert bool(made._copies._rooms) == is_reserved
