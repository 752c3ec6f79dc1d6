"""Records the samples, weights, gradients and all-reduces of each step for lessons in code.

Active only with `spool.DETAILS` in the environment: the hooks read all of these tensors, which is fast enough
only for small models. Each fact becomes a note of its rank (`spool`), which `ddp_gui.learn.code_facts` reads
after the run has ended.
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.utils.data import DataLoader

from trainers.watch import flight_recorder
from trainers.watch.guard import hook
from trainers.watch.hooks import after, before, saved_file
from trainers.watch.recorder import hashes_of, parameters_of
from trainers.watch.saving import tensors_of

MAX_NOTES = 10_000
MAX_LINE_CHARS = 300
MAX_NESTED_DATASETS = 10
_CRITERIA = ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits")

# Calls to count because they are not read from the flight recorder: it does not record `monitored_barrier`,
# and only its collectives are read.
_UNRECORDED = ("monitored_barrier", "send", "recv", "isend", "irecv")


class Details:
    """Facts about one rank of a script."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._num_notes = 0
        self._depth = 0
        # Samples of a forward pass with gradients; they count as training if a backward pass follows.
        self._pending: list[int] | None = None
        self._losses: list[float] = []
        self._criteria: list[float] = []
        self._num_losses = self._num_criteria = 0
        # Number of the next record, count of this rank's collectives; those since the last optimizer step.
        self._next_record = self._num_collectives = 0
        self._collectives: list[tuple[str, int]] = []
        self._local_gradient_sum = 0.0
        self._hooked: set[int] = set()
        self._hash_before_step = 0
        self._line = ""

    def install(self) -> None:
        """Install the hooks."""
        from torch.optim import optimizer as optimizers

        before(nn.Module, "__call__", self._begin_forward)  # torch's hooks for all modules get no keywords
        nn.modules.module.register_module_forward_hook(self._end_forward, always_call=True)
        before(torch.autograd, "backward", self._begin_backward)
        for name in _CRITERIA:
            after(nn.functional, name, self._add_criterion)
        after(optimizers.Optimizer, "__init__", self._watch_optimizer)
        optimizers.register_optimizer_step_pre_hook(self._begin_step)
        optimizers.register_optimizer_step_post_hook(self._end_step)
        before(DataLoader, "__iter__", self._note_loader)
        after(
            torch, "save", lambda _none, *args, **kwargs: self._note_file("saved", saved_file(args, kwargs))
        )
        before(torch, "load", lambda f, *_args, **_kwargs: self._note_file("loaded", f))
        for name in _UNRECORDED:
            before(distributed_c10d, name, self._count_unrecorded)
            setattr(dist, name, getattr(distributed_c10d, name))
        for stream in (sys.stdout, sys.stderr):
            before(stream, "write", self._note_text)

    def note(self, kind: str, **values: Any) -> None:
        """Pass a note to rank 0, unless there have been very many."""
        self._num_notes += 1
        if self._num_notes <= MAX_NOTES:
            self._recorder.note(kind, step=self._recorder.step, **values)

    # Samples

    def _begin_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        self._depth += 1
        if self._depth > 1 or next(module.parameters(), None) is None:
            return
        self._end_pending(is_training=False)
        first = next((tensor for tensor in tensors_of([args, kwargs]) if tensor.dim()), None)
        if first is None:
            return
        self._pending = hashes_of([first.cpu()])
        if not torch.is_grad_enabled():
            self._end_pending(is_training=False)

    def _note_loader(self, loader: DataLoader[Any]) -> None:
        """Note the length of a loader's data set, and of the data sets of which it is a subset."""
        dataset: Any = loader.dataset
        sizes: list[int] = []
        while (
            isinstance(dataset, Sized) and not isinstance(dataset, str) and len(sizes) < MAX_NESTED_DATASETS
        ):
            sizes.append(len(dataset))
            full_dataset, dataset = dataset, getattr(dataset, "dataset", None)
        if sizes:
            self.note("loader", sizes=sizes, whole=id(full_dataset))

    def _end_forward(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._depth -= 1

    def _end_pending(self, *, is_training: bool) -> None:
        if self._pending is not None:
            self.note("seen", is_training=is_training, hashes=self._pending)
            self._pending = None

    # Losses and gradients

    @hook
    def _add_criterion(self, value: Any, *args: Any, **kwargs: Any) -> None:
        if torch.is_grad_enabled() and isinstance(value, Tensor) and value.numel() == 1:
            number = args[1].numel() if kwargs.get("reduction") == "sum" and len(args) > 1 else 1
            self._criteria.append(float(value.detach()) / number)
            self._num_criteria += 1

    @hook
    def _begin_backward(self, tensors: Any, *_args: Any, **_kwargs: Any) -> None:
        if self._recorder.is_in_backward:
            return
        self._end_pending(is_training=True)
        if not self._losses:  # earlier collectives do not belong to the gradients of this step
            self._read_collectives()
            self._collectives.clear()
        if isinstance(tensors, Tensor) and tensors.numel() == 1:
            self._losses.append(float(tensors.detach()))
            self._num_losses += 1

    @hook
    def _watch_optimizer(self, _none: None, optimizer: Any, *_args: Any, **_kwargs: Any) -> None:
        """Sum each gradient as backward computes it on this rank, before DDP averages it."""
        for parameter in parameters_of(optimizer):
            if parameter.requires_grad and id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                parameter.register_hook(self._add_gradient)

    @hook
    def _add_gradient(self, gradient: Tensor) -> None:
        self._local_gradient_sum += _projection(gradient)

    @hook
    def _begin_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._recorder.is_outermost(optimizer):
            self._hash_before_step = _weights_hash(optimizer)

    @hook
    def _end_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note the step and its gradients, which a closure or a hook of the optimizer may have changed."""
        if not self._recorder.is_outermost(optimizer):
            return
        self._read_collectives()
        gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
        reduced = [size for name, size in self._collectives if "reduce" in name or name == "all-gather"]
        self.note(
            "stepped",
            lr=float(optimizer.param_groups[0].get("lr") or 0.0),
            before=self._hash_before_step,
            after=_weights_hash(optimizer),
            used=math.fsum(map(_projection, gradients)),
            local=self._local_gradient_sum,
            gradient_bytes=sum(gradient.numel() * gradient.element_size() for gradient in gradients),
            reduced=reduced,
            losses=self._losses,
            criteria=self._criteria,
        )
        self._losses, self._criteria, self._local_gradient_sum, self._collectives = [], [], 0.0, []

    def _read_collectives(self) -> None:
        """Add the names and sizes of the collectives since the last call."""
        new_collectives, self._next_record = flight_recorder.collectives_since(self._next_record)
        self._num_collectives += len(new_collectives)
        self._collectives += [(collective.name, collective.num_bytes) for collective in new_collectives]

    def _count_unrecorded(self, *_args: Any, **_kwargs: Any) -> None:
        """Count a call that can wait for another rank and is not read from the flight recorder."""
        self._num_collectives += 1

    # Files and output

    @hook
    def _note_file(self, kind: str, file: Any) -> None:
        path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
        self._read_collectives()
        self.note(kind, path=os.path.abspath(str(path)), num_collectives=self._num_collectives)  # noqa: PTH100

    @hook
    def _note_text(self, text: str) -> None:
        *lines, self._line = (self._line + str(text)).split("\n")
        for line in lines:
            if any(character.isdigit() for character in line):
                self.note(
                    "printed",
                    line=line[:MAX_LINE_CHARS],
                    num_losses=self._num_losses,
                    num_criteria=self._num_criteria,
                )
        self._line = self._line[-MAX_LINE_CHARS:]


def _weights_hash(optimizer: Any) -> int:
    """Return a hash of the weights that an optimizer changes."""
    checksum = 0
    for parameter in parameters_of(optimizer):
        if hasattr(parameter, "to_local"):
            return 0  # the ranks hold different parts
        flat = parameter.detach().cpu().flatten().view(torch.uint8)
        checksum = zlib.crc32(flat.numpy().tobytes(), checksum)
    return checksum


def _projection(gradient: Tensor) -> float:
    """Return a linear function of a gradient: its mean over ranks is that of the mean gradient."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    flat = local.detach().cpu().double().flatten()
    return float((flat * torch.arange(1, flat.numel() + 1, dtype=torch.float64).cos()).sum())
