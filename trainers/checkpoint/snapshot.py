"""A rank's state copied into host memory, so that training goes on while it is written."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trainers.contract import events


@dataclass(kw_only=True)
class Progress:
    """Where training stands; exactly what a resumed run goes on from.

    Attributes:
        samples_in_epoch: global samples used in this epoch, whatever the number of ranks.
        learning_rate: the full rate somebody set during the run; None: the configuration's.
        best_value, best_step, num_evaluations_without_best: the best evaluation, and since when.
        evaluated_step: the newest step that was evaluated.
    """

    step: int = 0
    epoch: int = 0
    samples_in_epoch: int = 0
    learning_rate: float | None = None
    best_value: float | None = None
    best_step: int | None = None
    num_evaluations_without_best: int = 0
    evaluated_step: int | None = None

    def note_evaluation(self, metrics: Mapping[str, float]) -> bool:
        """Note an evaluation of this step; tell whether it is the best so far."""
        self.evaluated_step = self.step
        name = events.primary_metric(metrics)
        if name is None or not events.is_better(name, metrics[name], self.best_value):
            self.num_evaluations_without_best += 1
            return False
        self.best_value, self.best_step = metrics[name], self.step
        self.num_evaluations_without_best = 0
        return True


@dataclass(kw_only=True)
class Snapshot:
    """What one rank has to write, in host memory, so that training can go on.

    Attributes:
        state: weights and optimizer; None on a rank that writes nothing of them.
        problem: why the state could not be copied; the other ranks hear it from the writing thread.
    """

    progress: Progress
    reason: str
    value: float | None
    started: float
    random_state: dict[str, Any]
    scaler: dict[str, Any] | None
    state: dict[str, Any] | None = None
    problem: str | None = None
    stall_s: float = 0.0


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _piece_itself(_tensor: Tensor, piece: Tensor) -> Tensor:
    return piece


class HostCopies:
    """Copies states into host memory that the next copy uses again: fresh memory costs more than the copy.

    Args:
        device: where the state lies; from a GPU the memory is pinned, so that all copies run at once.
        local_piece, with_piece: take a tensor's part on this rank, and put another in its place.
    """

    def __init__(
        self,
        device: torch.device,
        local_piece: Callable[[Tensor], Tensor] = _same,
        with_piece: Callable[[Tensor, Tensor], Tensor] = _piece_itself,
    ) -> None:
        self._device = device
        self._local_piece = local_piece
        self._with_piece = with_piece
        self._memory: dict[str, Tensor] = {}

    @torch.no_grad()
    def reserve(self, state: dict[str, Any]) -> None:
        """Make room for a state's tensors without copying them."""
        for path, value in pytree.tree_leaves_with_path(state):
            if isinstance(value, Tensor):
                self._room_for(pytree.keystr(path), self._local_piece(value))

    @torch.no_grad()
    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a nested state; the last copy taken is overwritten.

        Tensors that are one and the same memory (tied weights) are one tensor in the copy too.
        """
        copied: dict[tuple[object, ...], Tensor] = {}

        def copy_leaf(path: pytree.KeyPath, value: Any) -> Any:
            if not isinstance(value, Tensor):
                return copy.deepcopy(value)
            piece = self._local_piece(value)
            memory = _memory_of(piece)
            if memory not in copied:
                copied[memory] = self._room_for(pytree.keystr(path), piece)
                copied[memory].copy_(piece, non_blocking=True)
            return self._with_piece(value, copied[memory])

        taken = pytree.tree_map_with_path(copy_leaf, state)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        assert isinstance(taken, dict)
        return taken

    def _room_for(self, name: str, piece: Tensor) -> Tensor:
        room = self._memory.get(name)
        if room is None or room.shape != piece.shape or room.dtype != piece.dtype:
            is_pinned = piece.device.type == "cuda"
            room = torch.empty_like(piece, device="cpu", pin_memory=is_pinned)
            self._memory[name] = room.zero_()  # touched once: the system hands out pages at their first use
        return room


def _memory_of(tensor: Tensor) -> tuple[object, ...]:
    """Return what two tensors share exactly when they are the same numbers in the same memory."""
    if tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every generator that training draws from: torch's, Python's, the GPU's."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(internal), gauss]}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put every generator where `random_state` found it."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
