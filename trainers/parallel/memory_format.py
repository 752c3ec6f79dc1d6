"""How images and filters lie in memory: channels last, where convolutions are faster that way.

Usually the numbers of one channel lie together; with channels last those of one pixel do. The shapes and the
numbers stay the same, only sums may be added up in another order (PyTorch's tutorial "Channels Last Memory
Format").
"""

from __future__ import annotations

import logging

import torch
from torch import nn

log = logging.getLogger(__name__)

# On a GPU it pays where tensor cores compute; in fp32 cuDNN is often slower with it.
_PRECISIONS_OF_TENSOR_CORES = ("bf16", "fp16", "tf32")


def put_channels_last(network: nn.Module, device: torch.device, precision: str) -> None:
    """Lay out the filters of a network of 2-d convolutions channels last; what flows through it follows."""
    if device.type == "cuda" and precision not in _PRECISIONS_OF_TENSOR_CORES:
        return
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        log.info("filters and images lie channels last in memory")


def align_state(optimizer: torch.optim.Optimizer) -> None:
    """Lay out each parameter's state as the parameter itself.

    A checkpoint keeps the layout it was saved with, and fused kernels go through both without looking.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            is_like_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if is_like_it and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
