"""Strategies with sharded parameters: layers, gradient norms and state by parameter name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.parallel.strategy import Strategy

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Return the layers to gather one at a time: the blocks of the network's stacks, or its children without
    stacks.

    A layer that shares a weight with another one (tied embeddings) is left out; the root gathers it.
    """
    stacks = list(_outermost_stacks(network))
    parts = [part for stack in stacks or [network] for part in _callable_parts(stack)]
    num_owners = Counter(
        parameter for module in network.modules() for parameter in module.parameters(recurse=False)
    )
    return [
        part
        for part in parts
        if (owned := list(part.parameters())) and all(num_owners[parameter] == 1 for parameter in owned)
    ]


def _outermost_stacks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield each ModuleList or Sequential of equal layers with weights, without searching inside it."""
    parts = list(module.children())
    if (
        isinstance(module, nn.ModuleList | nn.Sequential)
        and len(parts) > 1
        and len({type(part) for part in parts}) == 1
        and all(any(True for _ in part.parameters()) for part in parts)
    ):
        yield module
    else:
        for part in parts:
            yield from _outermost_stacks(part)


def _callable_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module's children. ModuleList and ModuleDict have no forward, so yield their children."""
    for part in module.children():
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from _callable_parts(part)
        else:
            yield part


class ShardedStrategy(Strategy):
    """A strategy whose parameters are sharded, so that a forward pass needs all ranks.

    Class attributes:
        owns_plain: True if a parameter that is not a DTensor is on this rank only, else all ranks hold it.
    """

    is_collective: ClassVar[bool] = True
    is_sharded: ClassVar[bool] = True
    owns_plain: ClassVar[bool] = False

    def make_optimizer(
        self, optimizer: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **arguments: Any
    ) -> torch.optim.Optimizer:
        """Create the optimizer with one kind of tensor per group, as fused kernels require."""
        if optimizer is torch.optim.SGD and arguments.get("fused") and _has_dtensors(groups):
            arguments["fused"] = None  # torch has a fused SGD for plain tensors only
        return optimizer(split_by_mesh(groups), **arguments)

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the gradients to this norm over all ranks; return the norm before clipping."""
        norm = self.gradient_norm()
        nn.utils.clip_grads_with_norm_(
            map(_local_shard_with_gradient, self._with_gradients()), max_norm, norm
        )
        return norm

    def gradient_norm(self) -> Tensor:
        """Return the gradient norm over the shards of all ranks; equal on every rank.

        Gradients that several ranks hold are divided by the number of copies, so that each counts once.
        """
        world_size = self.world.world_size
        gradients_by_copies: dict[int, list[Tensor]] = {}
        for parameter in self._with_gradients():
            assert parameter.grad is not None
            num_copies = 1 if self.owns_plain else count_copies(parameter.grad, world_size)
            gradients_by_copies.setdefault(num_copies, []).append(local_shard(parameter.grad))
        total = torch.zeros((), device=self.world.device)
        # one foreach call per group instead of a kernel per tensor
        for num_copies, shards in gradients_by_copies.items():
            total += nn.utils.get_total_norm(shards).square() / num_copies
        return self.world.sum(total).sqrt()

    def names(self) -> dict[Tensor, str]:
        """Return the name of each parameter and buffer in the unsharded network."""
        named_tensors = [*self.network.named_parameters(), *self.network.named_buffers()]
        return {tensor: name for name, tensor in named_tensors}

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return this rank's shards, not copied: `model` by parameter, `optimizer` by parameter and kind."""
        self.share_buffers()
        return {
            "model": self.network.state_dict(),
            "optimizer": optimizer_tensors(optimizer, self.names()),
        }

    def load_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Copy a state with the same names and shards into the live one."""
        live = self.state_dict(optimizer)
        for part in ("model", "optimizer"):
            copy_tensors(live[part], state[part])

    def share_buffers(self) -> None:
        """Synchronise the copies of each buffer, because only one of them is saved."""
        share_buffers(self.network)

    def _with_gradients(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.network.parameters() if parameter.grad is not None]


def share_buffers(network: nn.Module) -> None:
    """Broadcast rank 0's buffers (running statistics), as DDP does before each forward pass."""
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """True if a tensor is a DTensor."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, sharing its memory."""
    if not is_dtensor(tensor):
        return tensor
    assert not any(placement.is_partial() for placement in tensor.placements), (
        "a partial sum that is not reduced yet"
    )
    return tensor.to_local().detach()


def _local_shard_with_gradient(parameter: Tensor) -> Tensor:
    """Return this rank's shard of a parameter with its gradient; both share memory with the originals."""
    assert parameter.grad is not None
    shard = local_shard(parameter).detach()
    shard.grad = local_shard(parameter.grad)
    return shard


def count_copies(tensor: Tensor, world_size: int) -> int:
    """Return the number of ranks that hold the same shard."""
    if not is_dtensor(tensor):
        return world_size
    mesh = tensor.device_mesh
    sizes = [mesh.size(dim) for dim, kind in enumerate(tensor.placements) if not kind.is_replicate()]
    return world_size // math.prod(sizes)


def split_by_mesh(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split parameter groups so that each holds only plain tensors or only DTensors of one device mesh."""
    new_groups = []
    for group in groups:
        parameters_by_mesh: dict[object, list[Tensor]] = {}
        for parameter in group["params"]:
            mesh = parameter.device_mesh if is_dtensor(parameter) else None
            parameters_by_mesh.setdefault(mesh, []).append(parameter)
        new_groups += [group | {"params": parameters} for parameters in parameters_by_mesh.values()]
    return new_groups


def _has_dtensors(groups: Iterable[dict[str, Any]]) -> bool:
    return any(is_dtensor(parameter) for group in groups for parameter in group["params"])


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Return an optimizer's state by `<parameter>.<kind>`; a new optimizer's state is created first.

    Learning rates are not included: they follow from the configuration and the step.
    """
    if not optimizer.state:
        _make_state(optimizer)
    return {
        f"{names[parameter]}.{kind}": value
        for parameter, state in optimizer.state.items()
        for kind, value in state.items()
        if isinstance(value, Tensor)
    }


def copy_tensors(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into the live ones of the same names.

    Raises:
        ValueError: if a tensor is missing or has another shape; names the first one.
    """
    for name, tensor in live.items():
        if name not in saved:
            raise ValueError(f"there is no {name} in what was saved")
        if saved[name].shape != tensor.shape:
            raise ValueError(
                f"{name} was saved with shape {tuple(saved[name].shape)}, but is {tuple(tensor.shape)} now"
            )
        if saved[name] is not tensor:
            with torch.no_grad():
                local_shard(tensor).copy_(local_shard(saved[name]))


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the optimizer's state without changing weights: step with rate 0 and gradient 0, then zero the
    state.

    torch's SGD, Adam and AdamW start from zeros, so the next step is equal to a first step.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()
