"""Estimates the memory that autograd keeps of a batch from forward to backward, without computing anything.

Model and batch are on the meta device, so they have shapes but no memory. The estimate excludes temporary
memory of kernels and the gradients of the activations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainers import registry
from trainers.data.dataset import DataSpec
from trainers.optimisation.objective import Objective

log = logging.getLogger(__name__)

META = torch.device("meta")
# The difference of two sizes is one sample's share; batch norm refuses a batch of one.
FEWER, MORE = 2, 3


def activation_bytes_per_sample(network: nn.Module, spec: DataSpec) -> int | None:
    """Return the bytes that one more sample keeps in fp32, or None if the model depends on values.

    Args:
        network: in training mode, on the meta device.
    """
    try:
        few, more = (_saved_bytes(network, spec, batch_size) for batch_size in (FEWER, MORE))
    except Exception as error:  # noqa: BLE001 - a plug-in's model may fail, or depend on values
        log.info("the memory for activations is unknown: %s: %s", type(error).__name__, error)
        return None
    return (more - few) // (MORE - FEWER)


def _saved_bytes(network: nn.Module, spec: DataSpec, batch_size: int) -> int:
    """Return the bytes of all storages that autograd keeps, each counted once, without the weights."""
    own_addresses = {_address(tensor) for tensor in (*network.parameters(), *network.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> None:
        if (address := _address(tensor)) not in own_addresses:
            storages[address] = tensor.untyped_storage()

    inputs, targets = _batch(spec, batch_size)
    with saved_tensors_hooks(keep, _never), _KeptByKernels():
        Objective(spec).training_loss(network(inputs), targets)
    return sum(storage.nbytes() for storage in storages.values())


def _batch(spec: DataSpec, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a batch of this data, without values."""
    kind = torch.int64 if spec.vocabulary_size else torch.float32
    inputs = torch.empty((batch_size, *spec.input_shape), dtype=kind, device=META)
    return inputs, registry.task(spec.task).empty_targets(spec, batch_size, META)


class _KeptByKernels(TorchFunctionMode):
    """Attention and batch norm with the memory of the kernels of CPUs and GPUs.

    On the meta device torch would use the unfused attention, which keeps an attention matrix (length ×
    length): for long texts far more than fused kernels keep (Dao et al. 2022, "FlashAttention"). torch's
    batch norm keeps the correct tensors on the meta device, but takes 1.5 ms, half of the time for all image
    models.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            query, key, value = args[:3]
            return _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
        if function is functional.batch_norm and args:
            return _BatchNorm.apply(args[0], *args[3:5])  # type: ignore[no-untyped-call]
        return function(*args, **(kwargs or {}))


class _Attention(torch.autograd.Function):
    """Keeps what fused kernels keep: query, key, value, output, and one number per position and head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, num_heads, length, _ = query.shape
        output = query.new_empty((batch, length, num_heads, value.shape[-1])).transpose(1, 2)
        ctx.save_for_backward(query, key, value, output, query.new_empty((batch, num_heads, length)))
        return output


class _BatchNorm(torch.autograd.Function):
    """Keeps the input, like the kernels. Their two numbers per channel do not depend on the batch."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *_learned: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs)
        return torch.empty_like(inputs)


def _address(tensor: Tensor) -> int:
    """Return an identifier of a tensor's storage; on the meta device all data pointers are 0."""
    address: int = tensor.untyped_storage()._cdata  # noqa: SLF001
    return address


def _never(_: None) -> Tensor:
    raise AssertionError("backward never runs here")
