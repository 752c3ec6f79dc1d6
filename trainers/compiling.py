"""torch.compile, tried out on a batch before it is trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainers.distributed import World
from trainers.objective import Objective


def try_compile(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    objective: Objective,
    world: World,
    autocast: Callable[[], contextlib.AbstractContextManager[object]],
    backend: str | Callable[..., Any] = "inductor",
) -> str | None:
    """Compile the network in place and run it once forward and backward; return why it failed, or None.

    The trial leaves weights, gradients, running statistics and random state as they were. All ranks end
    up alike: where one fails, none compiles. The names of the weights stay.
    """
    problem = None
    # Not `network.compile()`: of a plain Sequential that compiles nothing (torch 2.13).
    network.forward = torch.compile(network.forward, backend=backend)
    with _untouched(network, world.device):
        try:
            with autocast():
                loss = objective.training_loss(network(inputs), targets)
            loss.backward()
        except Exception as error:  # noqa: BLE001 - a compiler fails in its own ways; the run goes on without
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    num_failed = world.sum(torch.tensor([float(problem is not None)], device=world.device)).item()
    if num_failed:
        del network.forward
    return problem or ("another rank could not compile it" if num_failed else None)


@contextlib.contextmanager
def _untouched(network: nn.Module, device: torch.device) -> Iterator[None]:
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
    network.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
