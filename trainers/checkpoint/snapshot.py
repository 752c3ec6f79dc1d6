"""Copies of the training state in memory."""

from __future__ import annotations

import contextlib
import copy
import logging
import mmap
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trainers.contract import events


class StepStart:
    """Stores generators and buffers at the beginning of a step, to restore them temporarily."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network = network
        self._device = device
        self._random: dict[str, Any] | None = None
        self._buffers: list[Tensor] = []

    @property
    def is_stored(self) -> bool:
        """True if the current step's beginning is stored."""
        return self._random is not None

    def store(self) -> None:
        """Store the current generators and buffers."""
        self._random = random_state(self._device)
        self._buffers = self._copy_buffers()

    def forget(self) -> None:
        """Discard the stored state: the step will not be interrupted."""
        self._random = None
        self._buffers = []

    @contextlib.contextmanager
    def restore_temporarily(self) -> Iterator[None]:
        """Restore the state at the beginning of the step; on exit, restore the current state."""
        assert self._random is not None
        current_random, current_buffers = random_state(self._device), self._copy_buffers()
        self._restore(self._random, self._buffers)
        try:
            yield
        finally:
            self._restore(current_random, current_buffers)

    def _copy_buffers(self) -> list[Tensor]:
        return [buffer.detach().clone() for buffer in self._network.buffers()]

    @torch.no_grad()
    def _restore(self, random: dict[str, Any], buffers: list[Tensor]) -> None:
        restore_random_state(random, self._device)
        for buffer, saved in zip(self._network.buffers(), buffers, strict=True):
            buffer.copy_(saved)


log = logging.getLogger(__name__)

# Alignment of each tensor in the block, in bytes: a cache line.
_ALIGNMENT = 64


@dataclass(kw_only=True)
class Progress:
    """The progress of training: exactly the values that a resumed run needs.

    Attributes:
        samples_in_epoch: global samples used in this epoch, independent of the number of ranks.
        learning_rate: the peak rate, if a user changed it during the run; None: the configuration's.
        best_value, best_step, num_evaluations_without_best: the best evaluation, and evaluations since then.
        evaluated_step: the last evaluated step.
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
        """Record an evaluation of this step; return True if it is the best so far."""
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
    """One rank's data to write, in host memory, so that training can continue.

    Attributes:
        state: weights and optimizer; None on a rank that does not write them.
        problem: why the state could not be copied; the writing thread reports it to the other ranks.
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


class HostCopies:
    """Copies states into host memory that is reused, because fresh memory costs more than the copy.

    All tensors share one block, which CUDA registers in one call. torch's allocator would round up the pinned
    memory of each tensor to a power of two, in total to about 1.7 times the size of the state.

    Args:
        device: device of the state; for a GPU the memory is pinned, so that all copies are asynchronous.
        local_shard, with_shard: get a tensor's part on this rank, and replace it.
    """

    def __init__(
        self,
        device: torch.device,
        local_shard: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        with_shard: Callable[[Tensor, Tensor], Tensor] = lambda _, shard: shard,
    ) -> None:
        self._device = device
        self._local_shard = local_shard
        self._with_shard = with_shard
        self._layout: list[tuple[object, ...]] = []
        self._buffers: list[Tensor] = []
        self._registered_address: int | None = None  # the address of the block if registered with CUDA

    @torch.no_grad()
    def reserve(self, state: dict[str, Any]) -> None:
        """Allocate memory for a state's tensors without copying them."""
        shards = [self._local_shard(leaf) for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)]
        for buffer in self._buffers_for({_memory_key(shard): shard for shard in shards}.values()):
            buffer.zero_()  # touch every page: the system allocates pages at their first use

    @torch.no_grad()
    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a nested state; overwrites the previous copy.

        Tensors that share the same memory (tied weights) are one tensor in the copy, too.
        """
        leaves, structure = pytree.tree_flatten(state)
        shards = [self._local_shard(leaf) if isinstance(leaf, Tensor) else None for leaf in leaves]
        distinct = {_memory_key(shard): shard for shard in shards if shard is not None}
        buffers = dict(zip(distinct, self._buffers_for(distinct.values()), strict=True))
        for memory, shard in distinct.items():
            buffers[memory].copy_(shard, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        copied_leaves = [
            copy.deepcopy(leaf) if shard is None else self._with_shard(leaf, buffers[_memory_key(shard)])
            for leaf, shard in zip(leaves, shards, strict=True)
        ]
        result = pytree.tree_unflatten(copied_leaves, structure)
        assert isinstance(result, dict)
        return result

    def _buffers_for(self, shards: Collection[Tensor]) -> list[Tensor]:
        """Return host memory for each piece, in the piece's layout; reused if the layout is unchanged."""
        templates = [torch.empty_like(shard, device="meta") for shard in shards]
        layout: list[tuple[object, ...]] = [
            (template.dtype, template.shape, template.stride()) for template in templates
        ]
        if layout == self._layout:
            return self._buffers
        self._release()
        offsets, num_bytes = [], 0
        for template in templates:
            offsets.append(num_bytes)
            num_bytes += -(-template.nbytes // _ALIGNMENT) * _ALIGNMENT
        block = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self._device.type == "cuda":
            self._registered_address = _pin_memory(torch.frombuffer(block, dtype=torch.uint8), self._device)
        # Each tensor gets its own storage, because torch.save writes entire storages.
        self._buffers = [
            _tensor_in_block(block, offset, template)
            for offset, template in zip(offsets, templates, strict=True)
        ]
        self._layout = layout
        return self._buffers

    def _release(self) -> None:
        if self._registered_address is not None:  # before the memory is freed
            torch.cuda.cudart().cudaHostUnregister(self._registered_address)
            self._registered_address = None
        self._buffers, self._layout = [], []


def _tensor_in_block(block: mmap.mmap, offset: int, template: Tensor) -> Tensor:
    """Return a tensor of this shape and layout in a block of memory, which lives as long as the tensor."""
    if template.numel() == 0:
        return torch.empty_like(template, device="cpu")
    flat = torch.frombuffer(block, dtype=template.dtype, count=template.numel(), offset=offset)
    return flat.as_strided(template.shape, template.stride())


def _pin_memory(block: Tensor, device: torch.device) -> int | None:
    """Pin memory for copies from a GPU and return its address; if CUDA refuses, log it and return None."""
    error = torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.nbytes, 0)
    if int(error) == 0:
        return block.data_ptr()
    log.warning(
        "%d bytes of host memory could not be pinned (CUDA error %d): checkpoints are copied more slowly",
        block.nbytes,
        int(error),
    )
    # Clear the error: otherwise CUDA reports it at the next call, in a kernel of the training.
    with contextlib.suppress(RuntimeError):
        torch.ones((), device=device)
    return None


def _memory_key(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that is equal for two tensors exactly if they are the same elements in memory."""
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
    """Set every generator to a state of `random_state`."""
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
