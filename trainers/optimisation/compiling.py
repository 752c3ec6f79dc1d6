"""torch.compile, tried on one batch first so that a failure falls back to eager mode."""

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

NOTHING_COMPILED = "torch compiles no part of this model on this device"
# torch warms up in the first call, captures in the second and replays from the third.
NUM_GRAPH_TRIALS = 3


def try_compile(
    strategy: Strategy,
    inputs: Tensor,
    targets: Tensor,
    objective: Objective,
    backend: str | Callable[..., Any] = "inductor",
    *,
    cuda_graphs: bool = False,
) -> str | None:
    """Compile a wrapped network and its loss in place, and try it; return the error, or None.

    Afterwards the network also accepts targets and then returns the mean loss (`Strategy.computes_loss`),
    unless the loss needs values from other ranks.

    The trial does not change weights, parameter names, gradients, running statistics or random state. It
    sends no gradients, because if a rank failed, the others would wait in an all-reduce. If one rank fails,
    no rank compiles.
    """
    from torch._dynamo import config as dynamo_config  # takes a second to import

    network, world = strategy.network, strategy.world
    problem = None
    with torch.no_grad(), _restore_state(network, world.device), strategy.autocast(), strategy.inside_model():
        includes_loss = not objective.needs_other_ranks(network(inputs))
    # First try a graph that is split at DDP's buckets, so that each bucket is sent while backward continues.
    # Then try an unsplit graph, because not every model can be split. A single rank sends nothing.
    for is_split in (True, False) if world.world_size > 1 else (False,):
        torch.compiler.reset()
        dynamo_config.optimize_ddp = is_split
        network.forward = _compiled_forward(network.forward, objective, backend, cuda_graphs=cuda_graphs)

        def compute_trial_loss() -> Tensor:
            if includes_loss:
                loss: Tensor = network(inputs, targets)
                return loss
            return objective.training_loss(network(inputs), targets)

        problem = _compile_error(strategy, compute_trial_loss, cuda_graphs=cuda_graphs)
        num_failed = world.sum(torch.tensor([float(problem is not None)], device=world.device)).item()
        strategy.computes_loss = includes_loss and num_failed == 0
        if num_failed == 0:
            return None
        del network.forward
    return problem or "another rank could not compile it"


def _compiled_forward(
    compute_scores: Callable[[Tensor], Any],
    objective: Objective,
    backend: str | Callable[..., Any],
    *,
    cuda_graphs: bool,
) -> Callable[..., Any]:
    """Return a forward pass that returns scores or, given targets, the mean loss from one joint graph."""

    def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return objective.training_loss(compute_scores(inputs), targets)

    # One graph per batch size, because after the smaller last batch of an epoch, torch would use a graph with
    # dynamic shapes, which costs more host time in each step. Evaluation uses more sizes.
    mode = "reduce-overhead" if cuda_graphs else None
    compiled_loss = torch.compile(compute_loss, backend=backend, mode=mode, dynamic=False)
    compiled_scores = torch.compile(compute_scores, backend=backend)

    def forward(inputs: Tensor, targets: Tensor | None = None) -> Any:
        if targets is None:
            return compiled_scores(inputs)
        if not cuda_graphs:
            return compiled_loss(inputs, targets)
        torch.compiler.cudagraph_mark_step_begin()  # allows overwriting the last step's output
        return compiled_loss(inputs, targets).clone()  # the loss outlives the step until it is reported

    return forward


def _compile_error(
    strategy: Strategy, compute_trial_loss: Callable[[], Tensor], *, cuda_graphs: bool = False
) -> str | None:
    """Run a compiled network forward and backward without side effects; return the error, or None."""
    from torch._dynamo.utils import counters

    network = strategy.network
    num_before = counters["stats"]["unique_graphs"]
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    counters["inductor"].pop("cudagraph_skips", None)
    with _restore_state(network, strategy.world.device):
        try:
            for _ in range(NUM_GRAPH_TRIALS if cuda_graphs else 1):
                with strategy.autocast(), strategy.inside_model():
                    loss = compute_trial_loss()
                # Do not call `loss.backward()`, which runs DDP's hooks; they would miscount with a static
                # graph.
                torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:  # noqa: BLE001 - compilers raise anything; the run continues uncompiled
            return f"{type(error).__name__}: {' '.join(explain(error).split())[:300]}"
    if cuda_graphs and counters["inductor"]["cudagraph_skips"]:
        return "the model has parts that torch does not capture"
    # A backend may skip frames (SkipFrame) and run them uncompiled without an error, for example bf16 on
    # GPUs without bf16 arithmetic.
    return None if counters["stats"]["unique_graphs"] > num_before else NOTHING_COMPILED


def disable_compilation(config: Config) -> contextlib.AbstractContextManager[object]:
    """Return a context in which compiled functions run in eager mode and nothing is compiled."""
    return torch.compiler.set_stance("force_eager") if config.compile else contextlib.nullcontext()


@contextlib.contextmanager
def _restore_state(network: nn.Module, device: torch.device) -> Iterator[None]:
    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield
    with torch.no_grad():
        for name, buffer in network.named_buffers():
            buffer.copy_(buffers[name])
