"""torch.compile, tried out on a batch before it is trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainers.contract.config import Config
from trainers.machine.os_errors import explain
from trainers.optimisation.objective import Objective
from trainers.parallel.strategy import Strategy

NOTHING_COMPILED = "torch compiles no part of this model here"


def try_compile(
    strategy: Strategy,
    inputs: Tensor,
    targets: Tensor,
    objective: Objective,
    backend: str | Callable[..., Any] = "inductor",
) -> str | None:
    """Compile a wrapped network in place and run it once forward and backward; return why it failed, or None.

    The trial leaves weights, gradients, running statistics and random state as they were. All ranks end
    up alike: where one fails, none compiles. The names of the weights stay. No gradient is sent: a rank
    that fails would leave the others waiting in the middle of a bucket.
    """
    from torch._dynamo import config as dynamo_config  # takes a second: only where something is compiled

    network, world = strategy.network, strategy.world
    problem = None
    # Cut by DDP's buckets, each is sent while the rest of backward computes; not everything can be cut. One
    # rank sends nothing.
    for is_cut in (True, False) if world.world_size > 1 else (False,):
        torch.compiler.reset()
        dynamo_config.optimize_ddp = is_cut
        # Not `network.compile()`: of a plain Sequential that compiles nothing (torch 2.13).
        network.forward = torch.compile(network.forward, backend=backend)
        problem = _why_it_fails(strategy, inputs, targets, objective)
        num_failed = world.sum(torch.tensor([float(problem is not None)], device=world.device)).item()
        if num_failed == 0:
            return None
        del network.forward
    return problem or "another rank could not compile it"


def _why_it_fails(strategy: Strategy, inputs: Tensor, targets: Tensor, objective: Objective) -> str | None:
    """Run a network forward and backward without a trace; return what went wrong, or None."""
    from torch._dynamo.utils import counters

    network = strategy.network
    num_before = counters["stats"]["unique_graphs"]
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    with _untouched(network, strategy.world.device):
        try:
            with strategy.autocast(), strategy.inside_model():
                loss = objective.training_loss(network(inputs), targets)
            # Not `loss.backward()`: DDP's hooks count, and miscount where the graph is static.
            torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:  # noqa: BLE001 - a compiler fails in its own ways; the run goes on without
            return f"{type(error).__name__}: {' '.join(explain(error).split())[:300]}"
    # What a backend skips (SkipFrame) runs uncompiled without an error, as bf16 does on GPUs that lack it.
    return None if counters["stats"]["unique_graphs"] > num_before else NOTHING_COMPILED


def uncompiled(config: Config) -> contextlib.AbstractContextManager[object]:
    """Return the context in which nothing is compiled, and what is compiled runs as it was written."""
    return torch.compiler.set_stance("force_eager") if config.compile else contextlib.nullcontext()


@contextlib.contextmanager
def _untouched(network: nn.Module, device: torch.device) -> Iterator[None]:
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
