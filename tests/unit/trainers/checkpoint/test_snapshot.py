"""Tests of state copies in host memory: pinned memory, its timing, and the written content."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trainers.checkpoint.snapshot import HostCopies

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
