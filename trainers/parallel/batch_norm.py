"""BatchNorm on several ranks: SyncBatchNorm, and what strategies must know about a network's batch norms."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainers.contract.config import Config
from trainers.parallel.process_group import World


def synchronise(network: nn.Module, config: Config, world: World) -> tuple[nn.Module, str]:
    """Convert BatchNorm to SyncBatchNorm if configured; return the network, and why not, or ""."""
    if not config.sync_batchnorm:
        return network, ""
    if not has_batch_norm(network):
        return network, f"{config.model} has no batch norm"
    if world.device.type == "cpu":
        return network, "torch supports it on GPUs only"
    if world.world_size == 1:
        return network, "there is one rank"
    return nn.SyncBatchNorm.convert_sync_batchnorm(network), ""


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """Return a network's batch norms, whose statistics depend on how samples are split over the ranks."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def has_batch_norm(network: nn.Module) -> bool:
    """True if a network has batch norms."""
    return bool(batch_norms(network))


def has_only_running_statistics(network: nn.Module) -> bool:
    """True if all buffers of a network belong to its batch norms."""
    batch_norm_buffers = {buffer for norm in batch_norms(network) for buffer in norm.buffers(recurse=False)}
    return batch_norm_buffers.issuperset(network.buffers())
