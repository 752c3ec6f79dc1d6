"""Records the steps of one rank of a script, as its hooks report them.

The training thread only stores numbers and keeps losses on their device. This takes 7 us per step in an
isolated loop, but several times as long within training, which evicts this code from the CPU caches between
steps. On a GPU the thread also records CUDA events, because the host's clock cannot time kernels. Another
thread writes the records to the spool four times a second and answers the supervisor's questions; on rank 0
it also merges the records of all ranks into events.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import itertools
import linecache
import math
import os
import re
import sys
import threading
import time
import traceback
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch  # there is no public function for these queries
from torch.utils.data import default_collate

from trainers.contract import heartbeats
from trainers.contract.heartbeats import BUILDING, COMPUTING, ENDING, EVALUATING, FETCHING, STEPPING
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import redirect_output
from trainers.machine import facilities
from trainers.watch import loops, settings, spool
from trainers.watch.collector import Collector
from trainers.watch.flight_recorder import flight_record_text
from trainers.watch.guard import hook
from trainers.watch.saving import Saving, tensors_of
from trainers.watch.spool import Control, SpoolWriter

WRITE_EVERY_S = 0.25
SAMPLE_EVERY_S = 1.0
# The recorder computes missing gradient norms: at most this often, and within this share of the time.
NORM_EVERY_S = 0.25
NORM_SHARE = 0.003
# Steps whose weights are hashed. Only the step count decides, so all ranks hash the same steps.
FIRST_FINGERPRINTS = frozenset({1, 10, 50})
FINGERPRINT_EVERY = 100
# Samples are compared between ranks by hashes of the first batches.
MAX_COMPARED_SAMPLES = 4096
MAX_HASHED_BYTES = 4096
MAX_LOCATED_PASSES = 4
# A GAN steps its critic a few times per step of its generator. After more steps of another optimizer, it
# counts as the new main optimizer.
MAX_OTHER_STEPS = 50
MAX_NOTED_READS = 20
# A step with more backward passes counts as one that never ends.
MAX_STEP_LOSSES = 1000
MAX_CUDA_EVENTS = 4096
# DDP regroups the gradients after its first steps.
STEPS_TO_BUCKETS = 5
BEGIN = "begin"
MAX_FILES = 1000
# A file counts as opened by the script if at most this many frames of libraries and hooks are in between.
MAX_FRAMES_TO_OPEN = 9
HAS_NUMPY = importlib.util.find_spec("numpy") is not None
NAN = math.nan
_PARTS = tuple(name for name in spool.Row._fields if name.endswith("_time_s"))

clock = time.perf_counter
_read_item = Tensor.item  # the original, before hooks wrap it
_NUMBER = re.compile(r"(?<![\w.])\d*\.?\d+(?:[eE][-+]?\d+)?|\d+\.")


class Recorder:
    """The state of one rank, written by its hooks.

    Attributes:
        rank, world_size: from the script's process group; before the group exists, from torchrun.
        step: completed steps of the optimizer that stepped first.
    """

    def __init__(self, run_dir: Path, code_dir: Path, resume_step: int | None = None) -> None:
        self.run_dir, self.code_dir, self._resume_step = run_dir, code_dir, resume_step
        self._code_root = f"{code_dir}{os.sep}"
        self.rank = int(os.environ.get("RANK", "-1"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.step = self._start_step = 0
        self.epoch = -1
        # Weak references, so that a script can free its model and optimizer.
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._optimizer: Callable[[], Any] = lambda: None
        self.is_evaluating = False
        self._is_without_grad = False
        self.is_in_backward = False
        self.is_in_step = False
        self.is_group_destroyed = False
        self.is_norm_synced = False
        self.has_reduced = False
        self.num_optimizer_steps = 0
        self.wait_start: float | None = None
        self.norm: Tensor | None = None
        self.unscaled: Tensor | None = None
        self.control: Control | None = None
        self._write_heartbeat = heartbeats.write_heartbeat
        self._losses: list[Tensor | float] = []
        self._zeroed_losses: list[Tensor | float] = []
        self._num_zeroed_losses = 0
        self._is_by_grad = False
        self.num_backwards_in_step = 0
        self._stepping_optimizer: Callable[[], Any] = lambda: None
        self._samples = 0
        self._data_s = self._backward_s = self._wait_s = self._backward_start = 0.0
        self._step_start = clock()
        self._optimizer_start = 0.0
        # The GPU of the losses, and the parts of the current step, each with the CUDA event at its end.
        self._gpu: torch.device | None = None
        self._cuda_events: list[tuple[str, Any]] = []
        self._side_stream: Any = None
        self._num_other_steps = 0
        self._norm_due = 0.0
        self._rows: deque[tuple[Any, ...]] = deque()
        self._notes: deque[tuple[str, dict[str, Any]]] = deque()
        self._data_pass: dict[str, Any] = {}
        self._is_epoch_set = False
        self._first_epoch = 0
        self._hashed_pass: dict[str, Any] = {}
        self._num_passes = self._passes_before = self._passes_at_load = 0
        self._num_epochs: int | None = None
        # Keys by which a read of the loss is recognised, and the losses of that step.
        self.read_keys: tuple[int, ...] = ()
        self._losses_read = self._losses
        self._num_reads = self._num_waits = self._waits_from = 0
        self._waited_s = 0.0
        self._wait_location: dict[str, Any] = {}
        # Number of parameters, and of values reduced since the last step, to detect local SGD.
        self._num_weights = self._num_reduced = 0
        self._average_location: dict[str, Any] = {}
        self._is_average_compared = True
        self._sends_messages = self._has_flat_shards = False
        self._num_ddp_models = 0
        self._files: set[str] = set()
        self._replaced: set[tuple[str, Any, int]] = set()
        self._sample_hashes: set[int] = set()
        self._num_hashed = 0
        self._writer: SpoolWriter | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._latest_row: dict[str, Any] = {}
        self._collector: Collector | None = None
        self._clock_offset = time.time() - clock()
        self._cpu = (time.process_time(), clock())
        self._base_memory: int | None = None
        self.saving = Saving(self, resume_step)
        if self.rank >= 0:
            self.begin()

    @property
    def model(self) -> nn.Module | None:
        """The outermost module, once it is known."""
        return self._model()

    # Life

    def begin(self) -> None:
        """Start to write records, for the current rank."""
        if self._thread is not None:
            return
        self._stop.clear()
        ranks_per_machine, machine = (
            int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "GROUP_RANK")
        )
        self.control = Control(
            self.run_dir, machine=machine, num_ranks=self.world_size, ranks_per_machine=ranks_per_machine
        )
        is_read_elsewhere = self.control.has_other_machines and machine != 0
        self._writer = SpoolWriter(self.run_dir, self.rank, syncs=is_read_elsewhere)
        self._write_heartbeat = heartbeats.begin_heartbeats(self.rank).write
        self._write_heartbeat(BUILDING)
        if self.rank == 0:
            self._collector = Collector(self.run_dir, self.world_size, self.control, self._resume_step or 0)
        self._thread = threading.Thread(target=self._run_thread, name="watch", daemon=True)
        self._thread.start()

    @hook
    def join_group(self, rank: int, world_size: int, backend: str, *, by_script: bool) -> None:
        """Note the script's process group, from which the rank is certain."""
        if self._thread is None:
            self.rank, self.world_size = rank, world_size
            if settings.SUPERVISED in os.environ:
                redirect_output(RunDirectory(self.run_dir).rank_log(rank))
            self.begin()
        elif (rank, world_size) != (self.rank, self.world_size):
            return  # a group of some of the ranks, or a second group
        group_info = {"rank": rank, "world_size": world_size, "backend": backend, "by_script": by_script}
        self.note("group", **group_info, **self.location())

    def reset_after_fork(self) -> None:
        """Reset in a forked child, which becomes a rank when it joins a process group."""
        self._thread, self._writer, self._collector = None, None, None
        self.rank = -1
        self._rows.clear()
        self._notes.clear()

    def end(self, status: int, **error_info: Any) -> None:
        """Write the remaining records, and how the script ended on this rank."""
        if self._thread is None or self._writer is None or self.control is None:
            return
        self._write_heartbeat(ENDING)
        self._end_averaging()
        self._note_samples()
        if status == spool.DONE and self._backward_start:
            self._note_stepless()
        self.note(
            "end",
            status=status,
            unused=self._unused_parameters(error_info.get("error", "")) or [],
            **error_info,
        )
        self._stop.set()
        self._thread.join(timeout=10.0)
        # Wait longer for a large checkpoint, which would be lost if the process ended now.
        while self._thread.is_alive() and self._collector is not None and self._collector.is_publishing:
            self._thread.join(timeout=1.0)
        self._thread = None
        self.control.set_rank_value(self.rank, spool.END, status)
        self.control.exchange()
        if self._collector is not None:
            self._collector.close()

    def note(self, kind: str, **values: Any) -> None:
        """Pass a note to rank 0."""
        self._notes.append((kind, values))

    def user_frame(self, max_frames: int = 100) -> FrameType | None:
        """Return the innermost frame in the user's code, or None; search at most `max_frames` frames."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a public function in all but its name
        while frame is not None and max_frames:
            if frame.f_code.co_filename.startswith(self._code_root):
                return frame
            frame, max_frames = frame.f_back, max_frames - 1
        return None

    def location(self, frame: FrameType | None = None) -> dict[str, Any]:
        """Return file and line of a frame, by default the innermost in the user's code, or {}."""
        frame = frame or self.user_frame()
        if frame is None:
            return {}
        return {"file": frame.f_code.co_filename.removeprefix(self._code_root), "line": frame.f_lineno}

    # Hooks, called by the training thread

    @hook
    def begin_backward(self, tensors: Any, *, by_grad: bool = False) -> None:
        """Note the loss of a backward pass, or of `autograd.grad` in a step without backward passes."""
        self.is_in_backward = True
        now = clock()
        self._write_heartbeat(COMPUTING)
        self._backward_start = now
        if self.step == self._start_step and self._data_s == 0.0:
            self._step_start = now
        self.wait_start = None
        if self._num_reduced:
            self._end_averaging()
        if not self._is_step_loss(by_grad=by_grad):
            return
        loss, self.unscaled = (tensors if self.unscaled is None else self.unscaled), None
        losses = (loss,) if isinstance(loss, Tensor) else loss
        self._losses_read, self.read_keys = self._losses, ()
        for value in losses:
            if isinstance(value, Tensor) and value.numel() == 1:
                self._add_loss(value)
        if self._gpu is not None:
            self._record_cuda_event("forward")
        if self._is_without_grad:
            self._is_without_grad = False
            self.note("mode", is_training=True, at=time.time())
        if self.saving.pending is not None:
            self.saving.end_skipping(is_pass_over=False)
        if self._data_pass and not self._data_pass["is_training"]:
            self._data_pass["is_training"] = True
            self._note_training_pass()

    def _is_step_loss(self, *, by_grad: bool) -> bool:
        """True if a backward pass computes the gradient of the step's own loss."""
        if self.is_in_step and self._is_in_step():
            self.num_backwards_in_step += 1
            if self.num_backwards_in_step > 1:
                # LBFGS evaluates the loss several times per step; the first value is the step's loss
                return False
        if self._losses and by_grad != self._is_by_grad:
            if by_grad:
                return False
            self._losses.clear()  # losses of inner steps, as in meta-learning
        self._is_by_grad = by_grad
        return True

    def _add_loss(self, loss: Tensor) -> None:
        """Keep a loss, and the keys by which a read of the loss is recognised."""
        if self._gpu is not None or (self.world_size > 1 and self._num_reads < MAX_NOTED_READS):
            self.read_keys += (address_of(loss), _number_before_scaling(loss))
        local = loss.to_local() if hasattr(loss, "to_local") else loss
        # Copy: the script may reduce its loss in place. On a CPU, `clone` takes ten times as long as `item`.
        self._losses.append(_read_item(local) if local.is_cpu else local.detach().clone())
        if local.is_cuda:
            self._gpu = local.device

    @hook
    def end_backward(self) -> None:
        """Note the end of a backward pass."""
        now = clock()
        self.is_in_backward = False
        self._backward_s += now - self._backward_start
        self._optimizer_start = now  # for a step whose closure calls backward
        if self.wait_start is not None:
            self._wait_s += now - self.wait_start
        if self._gpu is not None:
            self._record_cuda_event("backward" if self.wait_start is None else "wait")

    @hook
    def begin_step(self, optimizer: Any, *_args: Any) -> None:
        """Note that an optimizer begins its step."""
        if self._stepping_optimizer() is not optimizer:
            if self._is_in_step():
                return  # the step of a ZeroRedundancyOptimizer calls the step of its inner optimizer
            self._stepping_optimizer = weakref.ref(optimizer)
        self._optimizer_start = clock()
        self.is_in_step, self.num_backwards_in_step = True, 0
        if self._thread is None:
            if self.rank < 0:
                self.rank, self.world_size = 0, 1  # a script without ranks
            self.begin()
        if self._optimizer() is None or self._num_other_steps > MAX_OTHER_STEPS:
            self._optimizer = weakref.ref(optimizer)
            self._note_first_step(optimizer)
        if self.norm is None and self._optimizer_start >= self._norm_due:
            self._measure_norm(optimizer)

    @hook
    def end_step(self, optimizer: Any, *_args: Any) -> None:
        """Complete a step. Steps of further optimizers, as in a GAN, belong to the first one's step."""
        if optimizer is not self._stepping_optimizer():
            return
        now = clock()
        self.is_in_step = False
        self.num_optimizer_steps += 1
        if optimizer is not self._optimizer():
            self._num_other_steps += 1
            self._losses.clear()
            return
        self._num_other_steps = 0
        self.step += 1
        lr = optimizer.param_groups[0].get("lr", NAN)
        if isinstance(lr, Tensor):  # a scheduler changes it in place
            lr = lr.detach().clone()
        if self._gpu is not None:
            self._record_cuda_event("optimizer")
        # the latter if the script zeroes its gradients too early
        losses = self._losses or self._zeroed_losses
        self._rows.append(
            (
                self.step, max(self.epoch, 0), losses, lr, self.norm, self._samples,
                now, now - self._step_start, self._data_s, self._backward_s,
                now - self._optimizer_start, self._wait_s, self._data_pass.pop("num_new", 0),
                self._cuda_events,
            )
        )  # fmt: skip
        self._losses, self._zeroed_losses, self.norm = [], [], None
        if self._cuda_events:
            self._cuda_events = [(BEGIN, event) for _, event in self._cuda_events[-1:]]
        self._samples = 0
        self._data_s = self._backward_s = self._wait_s = 0.0
        self._step_start = now
        self._write_heartbeat(STEPPING, self.step)
        if self.control is not None:
            self.control.set_rank_value(self.rank, spool.STEP, self.step)
        if self.step == self._start_step + STEPS_TO_BUCKETS:
            self._note_buckets()
        if self.step in FIRST_FINGERPRINTS or self.step % FINGERPRINT_EVERY == 0:
            self._note_fingerprint(is_averaged=False)
            self._note_waits()

    def is_outermost(self, optimizer: Any) -> bool:
        """True unless the step runs inside another optimizer's step, as in a ZeroRedundancyOptimizer."""
        return optimizer is self._stepping_optimizer()

    def _is_in_step(self) -> bool:
        """True while an optimizer step runs. Discards the loss of a step that raised an error."""
        if not self.is_in_step:
            return False
        optimizer = self._stepping_optimizer()
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - a public function in all but its name
        while optimizer is not None and frame is not None:
            # The function that calls the hooks, `Optimizer.profile_hook_step.<locals>.wrapper`.
            if "wrapper" in frame.f_code.co_name and frame.f_locals.get("self") is optimizer:
                return True
            frame = frame.f_back
        self.is_in_step = False
        self._losses, self._zeroed_losses, self.norm = [], [], None
        return False

    def _note_buckets(self) -> None:
        if isinstance(self.model, nn.parallel.DistributedDataParallel):
            logging_data = self.model._get_ddp_logging_data()  # noqa: SLF001 - no public function
            sizes = str(logging_data.get("rebuilt_bucket_sizes") or logging_data.get("bucket_sizes", ""))
            self.note("buckets", sizes=[int(size) for size in sizes.split(",") if size.strip()])

    @hook
    def drop_losses(self, owner: Any, *_args: Any, **_kwargs: Any) -> None:
        """Set aside losses whose gradients are zeroed before a step, as in the first pass of SAM."""
        if not self._losses or self.is_in_step:
            return
        optimizer, model = self._optimizer(), self.model
        is_first = optimizer is None or getattr(owner, "param_groups", None) is optimizer.param_groups
        if is_first or owner is model or owner is getattr(model, "module", None):
            self._zeroed_losses = self._losses[:]
            self._num_zeroed_losses += len(self._losses)
            self._losses.clear()
            self._samples *= bool(self._data_pass)  # the inputs of the model are counted again

    @hook
    def skip_step(self) -> None:
        """Note that a gradient scaler has skipped a step, so that the loss belongs to no step."""
        self._losses.clear()
        self._zeroed_losses = []
        self._samples = 0
        self.norm = None

    @hook
    def begin_fetch(self) -> float:
        """Note that the script waits for a batch."""
        is_training = self._is_training_now()
        self._write_heartbeat(EVALUATING if self.is_evaluating else FETCHING)
        now = clock()
        if self.saving.pending is not None:
            self._samples, self._data_s = 0, 0.0
            if is_training:
                self.saving.begin_fetch()
        if self.step == self._start_step and self._samples == 0:
            self._step_start = now  # the first step has no previous step whose end could be its beginning
        if not is_training and self.step > 0 and not self.is_evaluating and not self._is_without_grad:
            self._is_without_grad = True  # an evaluation in training mode
            self.note("mode", is_training=False, at=time.time(), **self.location())
        return now

    @hook
    def end_pass(self) -> None:
        """Note that a data loader has no more batches."""
        if self._is_training_now():
            self._passes_before += self.saving.pending is not None
            self.saving.end_skipping(is_pass_over=True)

    @hook
    def end_fetch(self, batch: Any, started_at: float, data_pass: dict[str, Any] | None) -> None:
        """Note a batch of a data loader."""
        self._data_s += clock() - started_at
        if self.is_evaluating or not torch.is_grad_enabled():
            return
        if self._gpu is not None:
            self._record_cuda_event("data")
        self._data_pass = data_pass or {}
        if data_pass is not None:
            data_pass["num_new"] = data_pass.get("num_new", 0) + 1
        self._count_samples(batch)

    def _count_samples(self, batch: Any) -> None:
        """Count the samples of a batch. Hash them in the first pass, or if the script has no loader."""
        first = batch[0] if isinstance(batch, list) and batch else None
        if not isinstance(first, Tensor) or not first.dim():  # most batches need no search
            first = next((tensor for tensor in tensors_of(batch) if tensor.dim()), None)
        if first is None:
            return
        self._samples += _num_collated(batch, first) if self._data_pass.get("collates") else first.size(0)
        self._hashed_pass = self._hashed_pass or self._data_pass
        is_first = self._data_pass is self._hashed_pass or not self._data_pass
        if is_first and self._num_hashed < MAX_COMPARED_SAMPLES and self.world_size > 1:
            self._hash_samples([tensor for tensor in tensors_of(batch) if tensor.dim()])

    @hook
    def begin_pass(self, loader: Any) -> dict[str, Any]:
        """Note that the script iterates a data loader from its beginning; return a record of this pass."""
        frame = self.user_frame() if self._num_passes < MAX_LOCATED_PASSES else None
        location = self.location(frame) if frame else {}
        if self._data_pass and not self._data_pass["is_training"]:
            self._samples = 0  # the earlier batch came from `next(iter(loader))` and was not trained on
        self._num_epochs = loops.num_epochs(frame, self._passes_at_load) or self._num_epochs
        if self._is_training_now():
            self.saving.begin_pass()
        data_pass = {
            "loader": loader,
            "collates": loader.collate_fn is not default_collate,
            "place": location,
        }
        return data_pass | {"is_training": False, "num_epochs": self._num_epochs}

    @hook
    def set_iterator(self, iterator: Any) -> None:
        """Store the iterator of the current pass."""
        if self._is_training_now():
            self.saving.set_iterator(iterator)

    def _is_training_now(self) -> bool:
        if self.is_evaluating and getattr(getattr(self.model, "module", self.model), "training", False):
            self.set_mode(is_training=True)  # Lightning sets the attribute, and does not call `train`
        return not self.is_evaluating and torch.is_grad_enabled()

    @property
    def num_passes(self) -> int:
        """The number of passes over training data that have begun, including passes before a resume."""
        return self._passes_before + self._num_passes

    def continue_from(self, step: int, *, num_passes: int) -> None:
        """Continue the counts of steps and completed passes from a checkpoint."""
        self.step = self._start_step = step
        self._passes_before = self._passes_at_load = num_passes

    @hook
    def note_indices(self, sampler: Any, indices: list[int]) -> None:
        """Note the samples that a sampler assigns to this rank in a pass."""
        sampler._watched_order = zlib.crc32(array("q", indices).tobytes())  # noqa: SLF001 - ours

    @hook
    def set_mode(self, *, is_training: bool) -> None:
        """Note that the model was put into training or evaluation mode."""
        if self.is_evaluating == is_training and self.step > 0:
            self.note("mode", is_training=is_training, at=time.time(), **self.location())
        self.is_evaluating = not is_training
        if is_training:
            self._step_start = clock()
            self._data_s = 0.0
            self._cuda_events = []
            if self._gpu is not None:
                self._record_cuda_event(BEGIN)
        else:
            self._write_heartbeat(EVALUATING)

    @hook
    def note_model(self, model: nn.Module, kind: str, **location: Any) -> None:
        """Note the outermost module: the module in DDP or FSDP, else the module of the first optimizer."""
        inner = getattr(model, "module", model) if kind == "ddp" else model
        self._model = weakref.ref(model)
        parameters = list(inner.parameters())
        if isinstance(model, nn.parallel.DistributedDataParallel):
            num_sharing = model.process_group.size()
            self._num_ddp_models += 1
        else:
            num_sharing = max((_mesh_size(parameter) for parameter in parameters), default=1)
        norms = [m for m in inner.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001
        self.note(
            "model",
            wrapper=kind,
            name=type(getattr(inner, "_orig_mod", inner)).__name__,
            num_parameters=sum(parameter.numel() for parameter in parameters),
            num_sharing=num_sharing,
            device=str(parameters[0].device) if parameters else "",
            num_batch_norms=sum(not (self.is_norm_synced or isinstance(m, nn.SyncBatchNorm)) for m in norms),
            **location,
        )

    @hook
    def note_last_gradient(self, _parameter: Any) -> None:
        """Note that the usually last gradient of this rank is complete."""
        if self.world_size == 1:
            return
        self.wait_start = clock()
        if self._gpu is not None:
            self._record_cuda_event("backward")

    @hook
    def note_norm(self, norm: Any) -> None:
        """Keep the gradient norm that the script computes, unless it is the norm of a shard only."""
        if isinstance(norm, Tensor) and not hasattr(norm, "to_local"):
            self.norm = norm.detach()

    @hook
    def note_read(self, number: Any, value: Tensor, started_at: float) -> None:
        """Note that the script reads its loss as a number, also before dividing it."""
        is_noted = self._num_reads < MAX_NOTED_READS and isinstance(number, float)
        if not (is_noted or value.is_cuda) or not self._losses_read:
            return
        if ({address_of(value), _node_number(value.grad_fn)} - {0}).isdisjoint(self.read_keys):
            return
        # An integer tensor may reuse the address of a freed loss.
        if value.is_cuda and value.is_floating_point():
            self._waited_s += clock() - started_at
            self._num_waits += 1
            self._wait_location = self._wait_location or self.location()
        if is_noted and (location := self.location()):  # a read by the script, not by the recorder
            self._num_reads += 1
            step = self.step + (self._losses_read is self._losses)
            self.note("read", step=step, value=number, loss=self._losses_read[-1], **location)

    def _note_waits(self) -> None:
        """Note the time that the host waited for the GPU in reads of the loss since the last call."""
        num_steps = self.step - self._waits_from
        if self._num_waits:
            waits = {"waited_s": self._waited_s, "num_steps": num_steps}
            self.note("waits", num=self._num_waits, **waits, **self._wait_location)
        self._num_waits, self._waited_s, self._waits_from = 0, 0.0, self.step

    @hook
    def _unused_parameters(self, error: str) -> list[str]:
        """Return the names of the parameters that an error of DDP lists by their numbers."""
        match = re.search(r"did not receive grad for rank \d+: ([\d ]+)", error)
        # The numbers refer to the model that failed, which is unknown if the script has several models.
        if match is None or self.model is None or self._num_ddp_models > 1:
            return []
        trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        return [trained[int(number)].removeprefix("module.") for number in match[1].split()]

    @hook
    def note_collective(self, *args: Any, **_kwargs: Any) -> None:
        """Note a collective of the script, which may average the loss or the weights."""
        if self.is_in_backward:  # hand-written tensor parallelism, unless the weights turn out to be equal
            self.note_message()
            return
        self.has_reduced = True
        if self.step > self._start_step and not self._backward_s:  # between a step and the next backward
            self._num_reduced += sum(tensor.numel() for tensor in args[:2] if isinstance(tensor, Tensor))
            if not self._average_location and self._num_reduced >= self._num_weights / 2:
                self._average_location = self.location()

    @hook
    def _end_averaging(self) -> None:
        """Hash the weights after the ranks have averaged them, once after each hash without averaging."""
        if self._num_reduced >= self._num_weights / 2 and not self._is_average_compared:
            self._note_fingerprint(is_averaged=True, **self._average_location)
        self._num_reduced = 0

    def note_message(self, *_args: Any, **_kwargs: Any) -> None:
        """Note that ranks send messages to each other during training, as in a pipeline."""
        if not self._sends_messages and self._backward_start:
            self._sends_messages = True
            self.note("messages")

    @hook
    def note_group_destroyed(self, group: Any = None) -> None:
        """Note that the script destroys its process group, and keep the group alive to avoid a deadlock. The
        destructor of ProcessGroupGloo waits for the group's mutex while it holds the GIL; gloo's thread holds
        that mutex and waits for the GIL to release its final all-reduce (torch 2.13, under high load).
        """
        if group is None:
            self.is_group_destroyed = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))

    @hook
    def note_file(self, path: Any) -> None:
        """Note a file that the script's own code opens for writing."""
        if not isinstance(path, str | os.PathLike) or len(self._files) >= MAX_FILES:
            return
        absolute_path = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
        frame = self.user_frame(max_frames=MAX_FRAMES_TO_OPEN)
        if frame is None or absolute_path in self._files or absolute_path.startswith(("/dev/", "/proc/")):
            return
        self._files.add(absolute_path)
        self.note("file", path=absolute_path, **self.location(frame))

    def replace(self, request: str, skip: int) -> None:
        """Note that a request for a GPU has no effect, once per line."""
        frame = sys._getframe(skip)  # noqa: SLF001 - a public function in all but its name
        key = (request, frame.f_code, frame.f_lineno)
        if key not in self._replaced:
            self._replaced.add(key)
            self.note("replaced", what=request, **self.location())

    def is_called_by_script(self, skip: int) -> bool:
        """True if the caller is the script's own code, not a library."""
        caller = sys._getframe(skip)  # noqa: SLF001 - a public function in all but its name
        return caller.f_code.co_filename.startswith(self._code_root)

    # The first step, and occasional measurements

    def _note_first_step(self, optimizer: Any) -> None:
        if self.model is None and (module := _outermost_module(optimizer)) is not None:
            self.note_model(module, "none")
        modules = () if self.model is None else self.model.modules()
        # With FSDP 1, parameters are a rank's own shards, as plain tensors.
        self._has_flat_shards = any(type(layer).__name__ == "FullyShardedDataParallel" for layer in modules)
        group = optimizer.param_groups[0]
        sizes = [
            sum(parameter.numel() for parameter in parameter_group["params"])
            for parameter_group in optimizer.param_groups
        ]
        self._num_weights = sum(sizes)
        lr = _learning_rate(group)
        name, rates = type(optimizer).__name__, _learning_rates(optimizer)
        num_steps = None if self._start_step else loops.num_steps(sys._getframe())  # noqa: SLF001
        properties = {"group_sizes": sizes, "rates": rates, "num_steps": num_steps}
        properties["is_rate_written"] = self._is_written(group.get("initial_lr", lr))
        self.note("optimizer", name=name, lr=lr, **properties, **self.location())
        on_gpu = self._gpu is not None
        self._base_memory = torch.cuda.memory_allocated(self._gpu) if on_gpu else facilities.resident_bytes()
        if _is_tensor_parallel(optimizer, self.model):
            self.note("split")  # the ranks of a tensor-parallel group get the same samples
        if self._samples == 0 and self.model is not None:
            # Without a data loader, count the inputs of the model.
            self.model.register_forward_pre_hook(self._count_inputs, with_kwargs=True)

    def _is_written(self, number: float) -> bool:
        """True if a number occurs on the command line, or in the file of `__main__` or of the step."""
        frame = self.user_frame()
        paths = {
            str(getattr(sys.modules["__main__"], "__file__", "")),
            frame.f_code.co_filename if frame else "",
        }
        text = " ".join([*sys.argv, *(line for path in paths for line in linecache.getlines(path))])
        return any(float(number_text) == number for number_text in _NUMBER.findall(text))

    @hook
    def _count_inputs(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or functorch.peek_interpreter_stack() is not None:
            return  # not a batch, but a trace of the model or a function of `torch.func`
        is_again = self.num_backwards_in_step > 0 and self._is_in_step()  # LBFGS evaluates the same batch
        if model.training and torch.is_grad_enabled() and not self._data_pass and not is_again:
            self._count_samples([*args, *kwargs.values()])

    def _measure_norm(self, optimizer: Any) -> None:
        started_at = clock()
        gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
        is_odd = any(grad.is_sparse or hasattr(grad, "to_local") for grad in gradients)
        if not gradients or is_odd or self._has_flat_shards:
            self._norm_due = math.inf  # the norm of a shard is not the norm of the gradient
            return
        with torch.no_grad():
            norms = torch._foreach_norm(gradients)  # noqa: SLF001 - as clip_grad_norm_ does
            self.norm = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
        now = clock()
        self._norm_due = now + max(NORM_EVERY_S, (now - started_at) / NORM_SHARE)

    def _note_fingerprint(self, *, is_averaged: bool, **location: Any) -> None:
        self._is_average_compared = is_averaged
        optimizer = self._optimizer()
        if self.world_size == 1 or self._has_flat_shards or optimizer is None:
            return
        total = torch.zeros((), dtype=torch.int64)
        for number, parameter in enumerate(parameters_of(optimizer), start=1):
            if hasattr(parameter, "to_local"):
                return  # the ranks hold different parts
            bits = parameter.detach().flatten().contiguous().view(torch.uint8)
            if bits.numel() % 4 == 0:
                bits = bits.view(torch.int32)
            total = total.to(bits.device) + number * bits.sum(dtype=torch.int64)
        self.note("fingerprint", step=self.step, hash=total, is_averaged=is_averaged, **location)

    def _hash_samples(self, tensors: list[Tensor]) -> None:
        """Hash each sample with all its tensors, to detect ranks with the same samples."""
        num_samples = tensors[0].shape[0]
        if (
            not HAS_NUMPY
            or not num_samples
            or not all(_is_plain(tensor) and tensor.shape[0] == num_samples for tensor in tensors)
        ):
            return
        self._sample_hashes.update(hashes_of(tensors))
        self._num_hashed += num_samples
        if self._num_hashed >= MAX_COMPARED_SAMPLES:
            self._note_samples()

    @hook
    def _note_samples(self) -> None:
        if self._sample_hashes:
            self.note("samples", hashes=sorted(self._sample_hashes), num_samples=self._num_hashed)
            self._sample_hashes = set()

    def _note_training_pass(self) -> None:
        loader = self._data_pass["loader"]
        self._num_passes += 1
        if self._num_passes > 1:
            self._note_samples()
        batch_sampler = getattr(loader, "batch_sampler", None)
        sampler = getattr(batch_sampler, "sampler", getattr(loader, "sampler", None))
        batch_size = getattr(loader, "batch_size", None) or getattr(batch_sampler, "batch_size", None)
        if not self._is_epoch_set:
            self.epoch = self.num_passes - 1
        self.note(
            "pass",
            number=self._num_passes,
            num_batches=_length(loader),
            num_samples=_length(getattr(loader, "dataset", None)),
            batch_size=batch_size,
            sampler=type(sampler).__name__,
            shuffles=bool(getattr(sampler, "shuffle", type(sampler).__name__ == "RandomSampler")),
            order=getattr(sampler, "_watched_order", None),
            num_epochs=self._data_pass["num_epochs"],
            **self._data_pass["place"],
        )

    @hook
    def set_epoch(self, epoch: int) -> None:
        """Note the epoch that the script passes to its sampler, which may begin with any number."""
        if not self._is_epoch_set:
            self._first_epoch = epoch - self.num_passes
        self.epoch, self._is_epoch_set = epoch - self._first_epoch, True

    def _record_cuda_event(self, part: str) -> None:
        """Record a CUDA event at the end of a part of the step, except during the capture of a CUDA graph."""
        if len(self._cuda_events) >= MAX_CUDA_EVENTS or torch.cuda.is_current_stream_capturing():
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._gpu))
        self._cuda_events.append((part, event))

    def _note_stepless(self) -> None:
        """Note losses without a step: the script updates its weights without an optimizer of torch."""
        if not self.num_optimizer_steps:
            self.note("stepless")
            del self._losses[:-1]
            self._num_zeroed_losses = 0

    # The thread

    def _run_thread(self) -> None:
        assert self._writer is not None and self.control is not None, "`begin` has opened them"
        sampled_at = -math.inf
        while True:
            is_over = self._stop.wait(WRITE_EVERY_S)
            try:
                self._flush()
                if is_over or clock() - sampled_at >= SAMPLE_EVERY_S:
                    sampled_at = clock()
                    self._sample()
                self._writer.sync()
                heartbeats.answer_request(flight_record_text)
                if self._collector is not None and not is_over:
                    self._collector.pump()
                self.control.exchange()
            except Exception:  # noqa: BLE001 - watching must never end the script
                traceback.print_exc()
            if is_over:
                return

    def _flush(self) -> None:
        assert self._writer is not None
        rows, new_rows = array("d"), [self._rows.popleft() for _ in range(len(self._rows))]
        if self._gpu and (last := next((row[-1] for row in reversed(new_rows) if row[-1]), None)):
            last[-1][1].synchronize()
        scalars = iter(
            self._to_floats(
                [scalar for row in new_rows for scalar in (*row[2], row[4]) if scalar is not None]
            )
        )
        for step, epoch, losses, lr, norm, samples, ended, *times, num_batches, cuda_events in new_rows:
            loss = sum(itertools.islice(scalars, len(losses))) if losses else NAN
            if cuda_events and cuda_events[0][0] == BEGIN:
                times = list(_gpu_times(cuda_events))
            step_s, data_s, backward_s, optimizer_s, wait_s = times
            forward_s = max(0.0, step_s - data_s - backward_s - optimizer_s)
            parts = (step_s, data_s, forward_s, backward_s, optimizer_s, wait_s)
            lr, norm = NAN if lr is None else float(lr), NAN if norm is None else next(scalars)
            rows.extend(
                (step, epoch, loss, lr, norm, samples, self._clock_offset + ended, *parts, num_batches)
            )
        if new_rows:
            self._latest_row = {"step": step, **dict(zip(_PARTS, parts, strict=True)), "loss": loss}
        if rows:
            self._writer.add_steps(rows)
        while self._notes:
            kind, values = self._notes.popleft()
            if kind == "fingerprint":
                values["hash"] = f"{int(values['hash']) & (2**64 - 1):016x}"
            elif kind == "read":
                values["loss"] = float(values["loss"])
            self._writer.add_note(kind, **values)

    def _to_floats(self, numbers: Sequence[Tensor | float]) -> list[float]:
        """Return scalars as floats; those on a GPU in one copy, on a stream that training does not delay."""
        tensors = [scalar for scalar in numbers if isinstance(scalar, Tensor)]
        if self._gpu is None or len(tensors) < len(numbers) or any(e.device != self._gpu for e in tensors):
            return [float(scalar) for scalar in numbers]
        if not tensors:
            return []
        self._side_stream = self._side_stream or torch.cuda.Stream(self._gpu)
        with torch.cuda.stream(self._side_stream):
            values: list[float] = torch.stack(
                [scalar.detach().double().reshape(()) for scalar in tensors]
            ).tolist()
        return values

    def _sample(self) -> None:
        assert self._writer is not None
        if len(self._losses) + self._num_zeroed_losses > MAX_STEP_LOSSES:
            self._note_stepless()
        now_cpu, now = time.process_time(), clock()
        cpu_usage = (now_cpu - self._cpu[0]) / max(1e-6, now - self._cpu[1])
        self._cpu = (now_cpu, now)
        latest = {
            name: None if value != value else round(value, 6) for name, value in self._latest_row.items()
        }
        device: dict[str, Any] = {
            "rank": self.rank, "node": int(os.environ.get("GROUP_RANK", "0")), "kind": "cpu",
            "index": int(os.environ.get("LOCAL_RANK", self.rank)), "name": None,
            "utilization_percent": round(100 * cpu_usage / max(1, torch.get_num_threads()), 1),
            "memory_used_bytes": facilities.resident_bytes(), "memory_total_bytes": None,
            "temperature_celsius": None, "power_watts": None,
        }  # fmt: skip
        peak = facilities.peak_memory_bytes()
        if self._gpu is not None:
            device |= {"kind": "cuda", **_read_gpu(self._gpu)}
            peak = torch.cuda.max_memory_allocated(self._gpu)
            heartbeats.note_gpu()
        self._writer.add_note(
            "sample",
            device=device,
            rates=_learning_rates(self._optimizer()),
            values={
                "rank": self.rank,
                **latest,
                "doing": heartbeats.describe_activity(),
                "base_memory_bytes": self._base_memory,
                "peak_memory_bytes": peak,
            },
        )


def _num_collated(batch: Any, first: Tensor) -> int:
    """Return the number of samples of a batch, which the script's own `collate_fn` may leave in lists."""
    if isinstance(batch, list) and isinstance(batch[0], Mapping | tuple):
        return len(batch)
    if isinstance(batch, tuple) and isinstance(batch[0], tuple | list):  # tuple(zip(*samples))
        return len(batch[0])
    return first.size(0)


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer changes."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _learning_rates(optimizer: Any) -> list[float | None]:
    """Return the learning rate of each parameter group; empty if the optimizer is gone."""
    groups = getattr(optimizer, "param_groups", ())
    return [None if math.isnan(rate := _learning_rate(group)) else rate for group in groups]


def _learning_rate(group: Mapping[str, Any]) -> float:
    """Return the learning rate of a parameter group; NaN if it has none (`lr=None` of Adafactor)."""
    rate = group.get("lr")
    return NAN if rate is None else float(rate)


def _gpu_times(cuda_events: Sequence[tuple[str, Any]]) -> tuple[float, float, float, float, float]:
    """Return the seconds of a step, and of its data, backward, optimizer and wait, by the GPU's clock."""
    seconds = dict.fromkeys(("data", "forward", "backward", "wait", "optimizer"), 0.0)
    for (_, previous_event), (part, event) in itertools.pairwise(cuda_events):
        seconds[part] += previous_event.elapsed_time(event) / 1000
    backward_s = seconds["backward"] + seconds["wait"]
    return sum(seconds.values()), seconds["data"], backward_s, seconds["optimizer"], seconds["wait"]


def _read_gpu(device: torch.device) -> dict[str, Any]:
    """Return a GPU's readings from NVML and its index on the machine; without NVML, only torch's readings."""
    properties = torch.cuda.get_device_properties(device)
    handle = None
    try:
        from trainers.machine.nvml import gpu_handle, gpu_index, read_gpu

        handle = gpu_handle(str(getattr(properties, "uuid", "")))
    except ImportError:
        pass  # psutil is optional in the user's environment
    if handle is not None:
        index = gpu_index(handle)
        return {**asdict(read_gpu(handle)), "index": device.index if index is None else index}
    free, total = torch.cuda.mem_get_info(device)
    readings = {"name": properties.name, "memory_used_bytes": total - free, "memory_total_bytes": total}
    return {**readings, "index": device.index, "utilization_percent": None}


def hashes_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return a hash of each sample of a batch, given as CPU tensors with the same number of samples."""
    num_samples = tensors[0].shape[0]
    hashes = [0] * num_samples
    for tensor in tensors:
        flat = tensor.detach().reshape(num_samples, tensor.numel() // max(1, num_samples))
        rows = flat[:, : MAX_HASHED_BYTES // flat.element_size()].contiguous().view(torch.uint8).numpy()
        hashes = [zlib.crc32(row, checksum) for row, checksum in zip(rows, hashes, strict=True)]
    return hashes


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's values, or the id of the tensor if it wraps other tensors."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return id(tensor)


def _node_number(node: Any) -> int:
    """Return the number of an autograd node, negative to differ from addresses; 0 without a node."""
    return -1 - node._sequence_nr() if hasattr(node, "_sequence_nr") else 0  # noqa: SLF001


def _number_before_scaling(loss: Tensor) -> int:
    """Return the number of the node whose result was divided or multiplied to get the loss, or 0."""
    node = loss.grad_fn
    # Compare the type, because `name()` takes 3 us.
    if node is None or type(node).__name__ not in ("DivBackward0", "MulBackward0"):
        return 0
    return _node_number(node.next_functions[0][0])


def _is_plain(tensor: Tensor) -> bool:
    """True if numpy can read a tensor: on the CPU, strided, not lazily conjugated, no subclass."""
    is_own = type(tensor) in (Tensor, nn.Parameter) and not tensor.is_conj() and not tensor.is_neg()
    return is_own and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _mesh_size(parameter: Any) -> int:
    """Return the number of ranks of a DTensor's device mesh; 1 for other tensors."""
    return parameter.device_mesh.size() if hasattr(parameter, "to_local") else 1


def _is_tensor_parallel(optimizer: Any, model: nn.Module | None) -> bool:
    """True if parameters are sharded by something other than FSDP, which shards one dimension of its mesh."""
    modules = () if model is None else model.modules()
    has_fsdp = any(type(module).__name__.startswith("FSDP") for module in modules)
    return any(
        not has_fsdp or sum(not part.is_replicate() for part in parameter.placements) > has_fsdp
        for parameter in parameters_of(optimizer)
        if hasattr(parameter, "to_local")
    )


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _outermost_module(optimizer: Any) -> nn.Module | None:
    """Return the outermost module with the parameters of an optimizer."""
    parameter_ids = set(map(id, parameters_of(optimizer)))
    # Compare types: `isinstance` reads `__class__`, which triggers the import of lazy objects.
    modules = [module for module in gc.get_objects() if issubclass(type(module), nn.Module)]
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    candidates = [
        module
        for module in modules
        if id(module) not in inner and parameter_ids <= {id(parameter) for parameter in module.parameters()}
    ]
    return min(candidates, key=lambda module: sum(1 for _ in module.modules()), default=None)
