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
# torch runs once to warm up, captures at the second time, and replays from then on.
NUM_TRIALS_OF_GRAPHS = 3


def try_compile(
    strategy: Strategy,
    inputs: Tensor,
    targets: Tensor,
    objective: Objective,
    backend: str | Callable[..., Any] = "inductor",
    *,
    cuda_graphs: bool = False,
) -> str | None:
    """Compile a wrapped network with its loss in place and try it out; return why that failed, or None.

    From then on the network also takes targets, and gives the mean loss then (`Strategy.computes_loss`),
    unless the loss needs what other ranks have computed.

    The trial leaves weights, gradients, running statistics and random state as they were. All ranks end
    up alike: where one fails, none compiles. The names of the weights stay. No gradient is sent: a rank
    that fails would leave the others waiting in the middle of a bucket.
    """
    from torch._dynamo import config as dynamo_config  # takes a second: only where something is compiled

    network, world = strategy.network, strategy.world
    problem = None
    with torch.no_grad(), _untouched(network, world.device), strategy.autocast(), strategy.inside_model():
        is_joined = not objective.needs_other_ranks(network(inputs))
    # Cut by DDP's buckets, each is sent while the rest of backward computes; not everything can be cut. One
    # rank sends nothing.
    for is_cut in (True, False) if world.world_size > 1 else (False,):
        torch.compiler.reset()
        dynamo_config.optimize_ddp = is_cut
        network.forward = _compiled_forward(network.forward, objective, backend, cuda_graphs=cuda_graphs)

        def loss_of_trial() -> Tensor:
            if is_joined:
                loss: Tensor = network(inputs, targets)
                return loss
            return objective.training_loss(network(inputs), targets)

        problem = _why_it_fails(strategy, loss_of_trial, cuda_graphs=cuda_graphs)
        num_failed = world.sum(torch.tensor([float(problem is not None)], device=world.device)).item()
        strategy.computes_loss = is_joined and num_failed == 0
        if num_failed == 0:
            return None
        del network.forward
    return problem or "another rank could not compile it"


def _compiled_forward(
    scores_of: Callable[[Tensor], Any],
    objective: Objective,
    backend: str | Callable[..., Any],
    *,
    cuda_graphs: bool,
) -> Callable[..., Any]:
    """Return a forward pass that gives scores, or with targets the mean loss: model and loss in one graph."""

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return objective.training_loss(scores_of(inputs), targets)

    # One graph for each size of a batch: the odd one at the end of an epoch would otherwise replace that of
    # all others by one for any size, which costs the host more in each step. Evaluation has more sizes.
    mode = "reduce-overhead" if cuda_graphs else None
    compiled_loss = torch.compile(loss_of, backend=backend, mode=mode, dynamic=False)
    compiled_scores = torch.compile(scores_of, backend=backend)

    def forward(inputs: Tensor, targets: Tensor | None = None) -> Any:
        if targets is None:
            return compiled_scores(inputs)
        if not cuda_graphs:
            return compiled_loss(inputs, targets)
        torch.compiler.cudagraph_mark_step_begin()  # what the last step returned may be overwritten
        return compiled_loss(inputs, targets).clone()  # the loss waits for its report

    return forward


def _why_it_fails(
    strategy: Strategy, loss_of_trial: Callable[[], Tensor], *, cuda_graphs: bool = False
) -> str | None:
    """Run a compiled network forward and backward without a trace; return what went wrong, or None."""
    from torch._dynamo.utils import counters

    network = strategy.network
    num_before = counters["stats"]["unique_graphs"]
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    counters["inductor"].pop("cudagraph_skips", None)
    with _untouched(network, strategy.world.device):
        try:
            for _ in range(NUM_TRIALS_OF_GRAPHS if cuda_graphs else 1):
                with strategy.autocast(), strategy.inside_model():
                    loss = loss_of_trial()
                # Not `loss.backward()`: DDP's hooks count, and miscount where the graph is static.
                torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:  # noqa: BLE001 - a compiler fails in its own ways; the run goes on without
            return f"{type(error).__name__}: {' '.join(explain(error).split())[:300]}"
    if cuda_graphs and counters["inductor"]["cudagraph_skips"]:
        return "the model has parts that torch does not capture"
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
