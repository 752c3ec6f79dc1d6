"""The losses of steps until a report takes them, and how its numbers come back to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class HostLosses:
    """Losses of steps as numbers: on the CPU they are there, and there is nothing to wait for."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Note a step's loss."""
        self._values.append(loss.item())

    def taken_with(self, extras: Sequence[float]) -> Tensor:
        """Return the losses and these numbers in one float64 tensor, and begin anew."""
        taken, self._values = self._values, []
        return torch.tensor([*taken, *extras], dtype=torch.float64)

    def sent(self, message: Tensor, norm: Tensor | None) -> Callable[[], list[float]]:
        """Return what gives the numbers of a message, and the norm or 0."""
        return lambda: [*message.tolist(), 0.0 if norm is None else float(norm)]


class DeviceLosses:
    """Losses of steps on their device: asking for a number would make the host wait for it.

    One report is under way at a time, so its numbers have their place in host memory, pinned for a GPU: only
    such are copied without waiting.

    Args:
        num_slots: the most numbers of a message, losses and others.
    """

    def __init__(self, device: torch.device, num_slots: int) -> None:
        is_gpu = device.type == "cuda"
        self._buffer = torch.zeros(num_slots, dtype=torch.float64, device=device)
        self._extras = torch.zeros(num_slots, dtype=torch.float64, pin_memory=is_gpu)
        self._arrived = torch.zeros(num_slots + 1, dtype=torch.float64, pin_memory=is_gpu)
        # The host sleeps while it waits: it has the cores to share with those who load data.
        self._has_arrived = torch.cuda.Event(blocking=True) if is_gpu else None
        self._losses: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Note a step's loss, which nobody may change: copying it would cost a kernel in each step."""
        self._losses.append(loss)

    def taken_with(self, extras: Sequence[float]) -> Tensor:
        """Return the losses and these numbers in one float64 tensor, and begin anew."""
        count = len(self._losses)
        message = self._buffer[: count + len(extras)]
        if self._losses:
            message[:count].copy_(torch.stack(self._losses))
        written = self._extras[: len(extras)].copy_(torch.tensor(extras, dtype=torch.float64))
        message[count:].copy_(written, non_blocking=True)
        self._losses = []
        return message

    def sent(self, message: Tensor, norm: Tensor | None) -> Callable[[], list[float]]:
        """Send a message and the norm (or 0) to the host; return what waits for them and gives them."""
        arrived = self._arrived[: len(message) + 1]
        arrived[-1] = 0.0
        arrived[:-1].copy_(message, non_blocking=True)
        if norm is not None:
            arrived[-1].copy_(norm, non_blocking=True)
        if self._has_arrived is not None:
            self._has_arrived.record()
        return lambda: self._wait_for(arrived)

    def _wait_for(self, arrived: Tensor) -> list[float]:
        if self._has_arrived is not None:
            self._has_arrived.synchronize()
        numbers: list[float] = arrived.tolist()
        return numbers
