"""Tests of the hash of weights by which replicas are compared."""

from __future__ import annotations

import pytest
import torch

from trainers.report.observer import WeightHash

CPU = torch.device("cpu")


def hash_of(*tensors: torch.Tensor) -> int:
    return int(WeightHash(tensors, CPU).compute())


def weights(dtype: torch.dtype = torch.float32, size: int = 1000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
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
