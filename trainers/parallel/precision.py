"""In how many bits the model computes: autocast, loss scaling for fp16, TF32 for matrix products."""

from __future__ import annotations

import contextlib

import torch

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The context of a forward pass, and the optimizer step that goes with it.

    fp16 has few bits for small gradients: the loss is scaled up before backward, the gradients down
    before the step, and a step with an infinite gradient is left out and the scale halved (Micikevicius
    et al. 2017, "Mixed Precision Training").
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._kind = _AUTOCAST.get(name)
        self._device = device
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            torch.backends.cudnn.allow_tf32 = name == "tf32"
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._one = torch.ones((), device=device)
        self.loss_scale()  # the scaler is complete only after its first use

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context the model's forward pass runs in."""
        if self._kind is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._kind)

    def loss_scale(self) -> torch.Tensor:
        """Return the gradient of the loss that backward begins with. Without waiting for a GPU.

        It is 1, but for fp16. Left to make it itself, backward would fill a new tensor in each step.
        """
        return self._one if self.scaler is None else self.scaler.scale(self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their own size, on every rank."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer; with fp16 only when all gradients are finite."""
        if self.scaler is None:
            optimizer.step()
        else:
            self.scaler.step(optimizer)
            self.scaler.update()
