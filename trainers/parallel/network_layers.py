"""The layers of a network: the parts that are gathered, or told of, one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Return the parts to gather one at a time: the blocks of its stacks, or its direct parts without any.

    A part that shares a weight with another (tied embeddings) is left to the network as a whole.
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
    """Yield the lists and chains of parts of one kind that have weights, and nothing within them."""
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
    """Yield direct parts; a list or dictionary of modules is never called itself, so its parts instead."""
    for part in module.children():
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from _callable_parts(part)
        else:
            yield part
