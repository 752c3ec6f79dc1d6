"""What a rank holds of a model in training, counted on its live tensors in the first step of a start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(kw_only=True)
class Holdings:
    """Counts what one rank has of weights, gradients and optimizer state; each at its moment in a step.

    Of a shard this rank's part counts. Activations, buffers of collectives and memory of libraries are not
    counted.

    Attributes:
        parameter_bytes: the weights at the end of the first forward pass, with what is still gathered.
        gradient_bytes: the gradients at the end of the first backward pass.
        optimizer_bytes: the optimizer's state after its first step.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None

    def forward_done(self) -> None:
        """Count the weights."""
        self.parameter_bytes = _num_bytes(self.network.parameters())

    def backward_done(self) -> None:
        """Count the gradients."""
        gradients = (parameter.grad for parameter in self.network.parameters())
        self.gradient_bytes = _num_bytes(gradient for gradient in gradients if gradient is not None)

    def step_done(self) -> None:
        """Count the optimizer's state; ZeRO-1's optimizer has one of its own for this rank's share."""
        own = getattr(self.optimizer, "optim", self.optimizer)
        values = (value for state in own.state.values() for value in state.values())
        self.optimizer_bytes = _num_bytes(value for value in values if isinstance(value, Tensor))


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_local(tensor).numel() * tensor.element_size() for tensor in tensors)


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other is its own."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
