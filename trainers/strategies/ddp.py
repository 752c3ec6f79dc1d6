"""DistributedDataParallel: each rank holds a copy of the model; gradients are averaged in backward."""

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes, not strings.

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from trainers.contract import heartbeats
from trainers.contract.config.options import Check
from trainers.parallel import shared_all_reduce
from trainers.parallel.batch_norm import has_only_running_statistics
from trainers.parallel.strategy import AllReduceTimes, Averaged, Bucket, DdpLog, Strategy
from trainers.registry import register_strategy


def _send_as_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    # DDP rejects the name of torch's hook on the CPU, although gloo supports bf16. Hence this wrapper.
    return default_hooks.bf16_compress_hook(group, bucket)


class _Averaging:
    """Holds the function that DDP's hook calls for each bucket; a recording replaces it.

    DDP does not allow a second hook, so the hook stays and this attribute changes.
    """

    def __init__(self, average: Callable[[dist.GradBucket], object]) -> None:
        self.average = average


def _average_in_shared_memory(averaging: _Averaging, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    averaging.average(bucket)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


_COMPRESSIONS = {"fp16": default_hooks.fp16_compress_hook, "bf16": _send_as_bf16}


# torch's rule for CUDA graphs of compiled models: a tensor that outlives a step cannot be in the graph's
# memory. DDP's buckets and gradients that accumulate over micro-batches outlive a step.
CUDA_GRAPH_CHECKS = (
    Check(holds="not cuda_graphs or compile", field="cuda_graphs", allowed="false unless compile is true"),
    Check(
        holds="not cuda_graphs or nproc_per_node * num_nodes == 1",
        field="cuda_graphs",
        allowed="false with more than one rank: an all-reduce between ranks cannot be captured in the graph",
    ),
    Check(
        holds="not cuda_graphs or gradient_accumulation_steps == 1",
        field="cuda_graphs",
        allowed="false with gradient_accumulation_steps above 1: each replay of the graph overwrites the "
        "gradients of earlier micro-batches",
    ),
)


class DataParallel(Strategy):
    """Wraps the network in DDP, which broadcasts rank 0's weights to all other ranks.

    A single rank has nothing to average and trains the network without DDP, which would only copy each
    gradient into a bucket. The result is bit-equal, unless gradients are compressed.
    """

    options: ClassVar[tuple[str, ...]] = (
        "bucket_cap_mb",
        "gradient_as_bucket_view",
        "static_graph",
        "gradient_compression",
        "all_reduce",
    )
    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            holds="not static_graph or gradient_accumulation_steps == 1",
            field="static_graph",
            allowed="false with gradient_accumulation_steps above 1: DDP counts every backward pass",
        ),
    )
    # Without the view, the buckets hold a second copy of all gradients.
    gradient_copies: ClassVar[str] = "1 if gradient_as_bucket_view else 2"
    measures_wait: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("torch._dynamo.utils",)
    rehearses: ClassVar[bool] = True
    holds_replica: ClassVar[bool] = True
    _ddp: DistributedDataParallel | None = None
    _log: DdpLog | None = None
    _shared: shared_all_reduce.SharedSum | None = None
    _averaging: _Averaging

    def wrap(self, network: nn.Module) -> None:
        config, device = self.config, self.world.device
        self.network = self.model = network
        if self.world.world_size == 1 and config.gradient_compression == "none":
            return
        self.model = self._ddp = DistributedDataParallel(
            network,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_cap_mb,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            static_graph=config.static_graph,
        )
        # Set after construction, which broadcasts the buffers once. The constructor's argument has another
        # name in some versions of torch.
        self._ddp.broadcast_buffers = self._sends_buffers(network)
        if config.gradient_compression in _COMPRESSIONS:
            self._ddp.register_comm_hook(dist.group.WORLD, _COMPRESSIONS[config.gradient_compression])
        elif config.all_reduce == "auto":
            self._share_memory(self._ddp)
        self._log = DdpLog(self._ddp, is_needed=self._shared is None)

    @property
    def all_reduce(self) -> str | None:
        return "shared_memory" if self._shared is not None else super().all_reduce

    @property
    def all_reduce_times(self) -> AllReduceTimes | None:
        if self._shared is None:
            return None if self._log is None else self._log.all_reduce_times()
        # Each bucket is averaged synchronously in the computing thread, so no time is hidden.
        return AllReduceTimes(spent_s=self._shared.spent_s, hidden_s=0.0, waited_s=self._shared.waited_s)

    def _sends_buffers(self, network: nn.Module) -> bool:
        """True if DDP must broadcast rank 0's buffers before each forward pass.

        Training does not read batch norms' running statistics, and rank 0's depend on its own batches only;
        evaluation and checkpoints share them. Other buffers may be read by the forward pass.
        """
        return self.world.world_size > 1 and not has_only_running_statistics(network)

    def inside_model(self) -> contextlib.AbstractContextManager[object]:
        """Return the context of DDP's forward, in which torch.compile splits the graph at its buckets."""
        enter = getattr(self._ddp, "_inside_ddp_forward", None)
        return contextlib.nullcontext() if enter is None else enter()

    def _share_memory(self, ddp: DistributedDataParallel) -> None:
        """Average in shared memory if all ranks are CPU ranks of one machine: faster, with equal results."""
        timeout_s = heartbeats.silence_limit(self.config).total_seconds()
        self._shared = shared_all_reduce.create(self.world, timeout_s)
        if self._shared is not None:
            self._averaging = _Averaging(self._average)
            ddp.register_comm_hook(self._averaging, _average_in_shared_memory)

    def _average(self, bucket: dist.GradBucket) -> None:
        assert self._shared is not None
        self._shared.average(bucket.buffer())

    def note_buckets(self, notes: list[Averaged] | None) -> bool:
        """Note buckets of the shared-memory all-reduce only: with gloo and NCCL no Python hook runs."""
        if self._shared is None:
            return False
        self._averaging.average = (
            self._average if notes is None else partial(self._average_and_note, notes, self._names())
        )
        return True

    def _names(self) -> dict[Tensor, str]:
        return {parameter: name for name, parameter in self.network.named_parameters()}

    def _average_and_note(
        self, notes: list[Averaged], names: dict[Tensor, str], bucket: dist.GradBucket
    ) -> None:
        assert self._shared is not None
        began_ns = time.monotonic_ns()
        rounds = self._shared.average_timed(bucket.buffer())
        ended_ns = time.monotonic_ns()
        parameters = tuple((names[parameter], parameter.nbytes) for parameter in bucket.parameters())
        notes.append(Averaged(began_ns=began_ns, ended_ns=ended_ns, bucket=parameters, rounds=tuple(rounds)))

    def gradient_buckets(self) -> tuple[Bucket, ...]:
        """Return DDP's buckets in the order in which backward completes them; empty if unknown."""
        parameters = [
            (name, parameter)
            for name, parameter in self.network.named_parameters()
            if parameter.requires_grad
        ]
        bucket_indices = [] if self._log is None else self._log.bucket_indices()
        if sorted(index for bucket in bucket_indices for index in bucket) != list(range(len(parameters))):
            return ()
        return tuple(
            tuple((parameters[index][0], parameters[index][1].nbytes) for index in bucket)
            for bucket in bucket_indices
        )

    def gradient_sync(self, *, enabled: bool) -> contextlib.AbstractContextManager[None]:
        """Skip the all-reduce for micro-batches that only accumulate (`no_sync`)."""
        return contextlib.nullcontext() if enabled or self._ddp is None else self._ddp.no_sync()


@register_strategy(
    "ddp",
    label="DDP",
    description="Every rank holds the whole model; gradients are averaged while backward runs.",
    sharing="After every backward pass DDP averages the gradients of all ranks, so all wait for the slowest.",
)
class Ddp(DataParallel):
    """Plain DDP; adds CUDA graphs on one rank."""

    options: ClassVar[tuple[str, ...]] = (*DataParallel.options, "cuda_graphs")
    checks: ClassVar[tuple[Check, ...]] = (*DataParallel.checks, *CUDA_GRAPH_CHECKS)
    takes_any_layout: ClassVar[bool] = True
