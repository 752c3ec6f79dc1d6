"""What a forward pass changes besides gradients, as it was when a step began.

A step of many micro-batches can be left in its middle: the weights have not moved yet. But what was drawn
at random, and statistics such as a BatchNorm's, have; put back, a checkpoint is that of the last whole step,
and the samples of the one that was left are trained on again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainers.checkpoint.snapshot import random_state, restore_random_state


class StepStart:
    """Remembers generators and buffers at the beginning of a step, and puts them back for a while."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network = network
        self._device = device
        self._random: dict[str, Any] | None = None
        self._buffers: list[Tensor] = []

    @property
    def is_noted(self) -> bool:
        """Whether the step under way was noted."""
        return self._random is not None

    def note(self) -> None:
        """Remember this moment."""
        self._random = random_state(self._device)
        self._buffers = self._copied_buffers()

    def forget(self) -> None:
        """Remember nothing: the step will not be left in its middle."""
        self._random = None
        self._buffers = []

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Have everything as it was when the step began; afterwards the step can go on."""
        assert self._random is not None
        random_now, buffers_now = random_state(self._device), self._copied_buffers()
        self._restore(self._random, self._buffers)
        try:
            yield
        finally:
            self._restore(random_now, buffers_now)

    def _copied_buffers(self) -> list[Tensor]:
        return [buffer.detach().clone() for buffer in self._network.buffers()]

    @torch.no_grad()
    def _restore(self, random: dict[str, Any], buffers: list[Tensor]) -> None:
        restore_random_state(random, self._device)
        for buffer, copied in zip(self._network.buffers(), buffers, strict=True):
            buffer.copy_(copied)
