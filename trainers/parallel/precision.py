"""The precision of training, and the memory layout of networks and optimizer states."""

from __future__ import annotations

import contextlib
import logging

import torch
from torch import nn

log = logging.getLogger(__name__)

# On a GPU, channels last is faster only on tensor cores; in fp32, cuDNN is often slower with it.
_TENSOR_CORE_PRECISIONS = ("bf16", "fp16", "tf32")


def put_channels_last(network: nn.Module, device: torch.device, precision: str) -> None:
    """Convert a network with 2-d convolutions to channels-last layout; activations inherit the layout."""
    if device.type == "cuda" and precision not in _TENSOR_CORE_PRECISIONS:
        return
    if any(isinstance(module, nn.Conv2d) for module in network.modules()):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        log.info("filters and images use the channels-last memory format")


def align_state(optimizer: torch.optim.Optimizer) -> None:
    """Give each parameter's optimizer state the memory layout of the parameter.

    A loaded state has the layout it was saved with, and fused kernels assume equal layouts unchecked.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            has_same_shape = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if has_same_shape and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast, loss scaling and the optimizer step of one precision.

    Small gradients underflow in fp16: the loss is scaled up before backward and the gradients are scaled
    down before the step. A step with an infinite gradient is skipped and the scale halved (Micikevicius et
    al. 2017, "Mixed Precision Training").
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._autocast_dtype = _AUTOCAST.get(name)
        self._device = device
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            torch.backends.cudnn.allow_tf32 = name == "tf32"
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._unit_gradient = torch.ones((), device=device)
        self.loss_scale()  # GradScaler creates its scale tensor at first use

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context manager for the model's forward pass."""
        if self._autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast_dtype)

    def loss_scale(self) -> torch.Tensor:
        """Return the initial gradient for `loss.backward`, without waiting for the GPU.

        The value is the loss scale in fp16, else 1. Without this argument, backward fills a new tensor in
        each step.
        """
        return self._unit_gradient if self.scaler is None else self.scaler.scale(self._unit_gradient)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale, on every rank."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer; in fp16 only if all gradients are finite."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
