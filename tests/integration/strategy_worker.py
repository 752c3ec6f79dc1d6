"""Worker that trains one small network with several strategies and writes the numbers.

python -m tests.integration.strategy_worker ANSWER.json JOBS.json

Tests start it with torchrun. Every job is an object with `strategy`, `config` (changes to the configuration),
and optionally `model` and `num_steps`. The reference is one process with the same global batches (`alone`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainers import build, registry
from trainers.contract import config as contract
from trainers.contract.config import Config
from trainers.data.dataset import IMAGE_CLASSIFICATION, LANGUAGE_MODELLING, DataSpec, TensorSplit
from trainers.data.loading import Loader
from trainers.optimisation import optimizers
from trainers.optimisation.objective import Objective
from trainers.parallel import process_group
from trainers.parallel.precision import Precision
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.registry import ModelOptions

NUM_SAMPLES = 43  # two global batches of 16 and an uneven one of 11
LENGTH = 12
NUM_TOKENS = 17
IMAGE = (1, 8, 8)
CPU = torch.device("cpu")
BASE = {
    "batch_size": 8,
    "optimizer": "adamw",
    "learning_rate": 0.003,
    "weight_decay": 0.1,
    "pipeline_microbatches": 4,
    "num_epochs": 1000,
}


def spec_and_split(model: str) -> tuple[DataSpec, TensorSplit]:
    """Return seeded, learnable samples: each token is a function of the previous one."""
    generator = torch.Generator().manual_seed(1)
    about = {"class_names": (), "sample_unit": "samples", "description": "", "source": ""}
    about |= {"num_train": NUM_SAMPLES, "num_validation": NUM_SAMPLES}
    if model.startswith("gpt"):
        first = torch.randint(NUM_TOKENS, (NUM_SAMPLES, 1), generator=generator)
        texts = (first * 3 ** torch.arange(LENGTH + 1)[None, :]) % NUM_TOKENS
        spec = DataSpec(
            task=LANGUAGE_MODELLING,
            input_shape=(LENGTH,),
            num_classes=NUM_TOKENS,
            vocabulary_size=NUM_TOKENS,
            **about,
        )
        return spec, TensorSplit(texts[:, :-1], texts[:, 1:], device=CPU)
    images = torch.randn(NUM_SAMPLES, *IMAGE, generator=generator)
    labels = images.flatten(1)[:, :4].argmax(1)
    spec = DataSpec(task=IMAGE_CLASSIFICATION, input_shape=IMAGE, num_classes=4, **about)
    return spec, TensorSplit(images, labels, device=CPU)


class ReduceScatters(TorchDispatchMode):
    """Record the data types of gradient reductions, of both input and output tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "reduce_scatter" in str(func):
            self.dtypes |= {str(leaf.dtype) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        return func(*args, **(kwargs or {}))


class Training:
    """The training loop's use of a strategy, without events, clocks and files."""

    def __init__(self, strategy: Strategy, config: Config, model: str) -> None:
        self.strategy, self.config = strategy, config
        spec, self.split = spec_and_split(model)
        torch.manual_seed(config.seed)
        network = build.build_network(registry.models()[model], spec, ModelOptions())
        self.dtypes_seen: set[str] = set()
        self.reduce_scatters = ReduceScatters()
        inner = next(module for module in network.modules() if isinstance(module, nn.Linear))
        inner.register_forward_pre_hook(lambda module, _: self.dtypes_seen.add(str(module.weight.dtype)))
        strategy.wrap(network)
        torch.manual_seed(config.seed + 1 + strategy.replica)
        strategy.autocast = Precision(config.precision, CPU).autocast
        strategy.model.train()
        self.objective = Objective(spec, num_ranks=strategy.world.world_size)
        self.optimizer = optimizers.make_optimizer(config, strategy)
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.step = 0

    def run(self, until: int) -> None:
        """Train up to a step, like trainers.loop."""
        strategy, world = self.strategy, self.strategy.world
        batches = build.make_batches(self.config, strategy, len(self.split))
        loader = Loader(self.split, batches, self.config, world.device)
        steps_per_epoch = -(-NUM_SAMPLES // self.config.global_batch(strategy.num_replicas))
        while self.step < until:
            epoch, done = divmod(self.step, steps_per_epoch)
            self._epoch(loader, epoch, done * self.config.global_batch(strategy.num_replicas), until)

    def _epoch(self, loader: Loader, epoch: int, first_sample: int, until: int) -> None:
        strategy, world = self.strategy, self.strategy.world
        loss, criterion = torch.zeros(()), strategy.criterion(self.objective)
        loader.set_epoch(epoch)
        for batch in loader.starting_at(first_sample):
            noting = self.reduce_scatters if self.config.precision == "bf16" else contextlib.nullcontext()
            with strategy.gradient_sync(enabled=batch.is_last), noting:
                with strategy.autocast():
                    share = criterion(strategy.model(batch.inputs), batch.targets, batch.weight)
                share.backward()
            loss += share.detach()
            if not batch.is_last:
                continue
            norm = torch.full((), torch.nan)
            if self.config.max_grad_norm is not None:
                norm = strategy.clip_gradients(self.config.max_grad_norm)
            elif world.is_main or strategy.is_collective:
                norm = strategy.gradient_norm()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            self.losses.append(_mean_over_ranks(loss, world))
            self.norms.append(float(norm))
            loss.zero_()
            if self.step == until:
                return

    @torch.no_grad()
    def scores(self) -> Tensor:
        """Return the scores of some samples in evaluation mode, for two batch shapes."""
        self.strategy.network.eval()
        parts = [self.strategy.scores(self.split.batch(torch.arange(n))[0]) for n in (5, 3, 5)]
        self.strategy.network.train()
        return torch.cat(parts).float()

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's weights; DTensors are gathered."""
        model = self.strategy.state_dict(self.optimizer)["model"]
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).clone()
            for name, value in model.items()
        }


def _mean_over_ranks(loss: Tensor, world: World) -> float:
    values = loss.detach().double().clone()
    if world.world_size > 1:
        dist.all_reduce(values)
    return float(values) / world.world_size


_alone: dict[str, Training] = {}


def alone(job: dict[str, Any], world_size: int, num_steps: int) -> Training:
    """Train in this process with the global batch, once for all jobs, without communication."""
    values = BASE | job.get("config", {})
    kind = registry.strategies()[job["strategy"]]
    together = contract.parse(values | {"nproc_per_node": world_size})
    num_global = together.global_batch(together.num_replicas(kind.ranks_per_replica))
    config = contract.parse(
        values | {"nproc_per_node": 1, "batch_size": num_global, "gradient_accumulation_steps": 1}
    )
    model = job.get("model", "gpt")
    key = json.dumps([model, num_steps, config.to_json()])
    if key not in _alone:
        world = World(rank=0, local_rank=0, world_size=1, node=0, device=CPU)
        _alone[key] = Training(Strategy(config, world), config, model)
        _alone[key].run(num_steps)
    return _alone[key]


def carry_out(job: dict[str, Any], world: World) -> dict[str, Any]:
    """Train according to a job; return its numbers and those of the single-process reference."""
    config = contract.parse(
        BASE | job.get("config", {}) | {"nproc_per_node": world.world_size, "strategy": job["strategy"]}
    )
    training = Training(build.make_strategy(config, world), config, job.get("model", "gpt"))
    until = job.get("num_steps", 20)
    training.run(until)
    reference = alone(job, world.world_size, until)
    scores = training.scores()
    weights, theirs = training.weights(), reference.weights()
    return {
        "losses": training.losses,
        "gradients_are_added_up_as": sorted(training.reduce_scatters.dtypes),
        "weights_are_used_as": sorted(training.dtypes_seen),
        "weights_are_kept_as": sorted({str(weight.dtype) for weight in weights.values()}),
        "norms": training.norms,
        "alone": {"losses": reference.losses, "norms": reference.norms},
        "worst_score": _max_over_ranks((scores - reference.scores()).abs().max(), world),
        "worst_weight": _max_over_ranks(
            torch.stack([(weights[name] - theirs[name]).abs().max() for name in weights]).max(), world
        ),
        "ranks_agree": _all_ranks(_copies_are_alike(training.strategy), world),
        "num_local": sum(_local_numel(p) for p in training.strategy.network.parameters()),
        "num_state": sum(
            _local_numel(value)
            for value in training.strategy.state_dict(training.optimizer)["optimizer"].values()
            if isinstance(value, Tensor)
        )
        if training.strategy.is_sharded
        else None,
        "num_whole": sum(p.numel() for p in reference.strategy.network.parameters()),
    }


def _local_numel(tensor: Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel()


def _copies_are_alike(strategy: Strategy) -> bool:
    """Return True if parameters replicated on all ranks are bit-identical to rank 0's."""
    if getattr(strategy, "owns_plain", False):
        return True
    for parameter in strategy.network.parameters():
        if not isinstance(parameter, DTensor):
            theirs = parameter.detach().clone()
            dist.broadcast(theirs, src=0)
            if not torch.equal(theirs, parameter.detach()):
                return False
    return True


def _all_ranks(value: bool, world: World) -> bool:
    return world.sum(torch.tensor(float(not value))).item() == 0


def _max_over_ranks(value: Tensor, world: World) -> float:
    values = value.double().clone()
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return float(values)


def refuse_pickles() -> None:
    """Fail if torch unpickles anything that comes from another rank."""

    def refuse(*_: Any) -> None:
        raise AssertionError("what came over a socket was about to be unpickled")

    assert distributed_c10d._tensor_to_object.__module__ == "torch.distributed.distributed_c10d"
    distributed_c10d._tensor_to_object = refuse


def run_jobs(carry_out: Callable[[dict[str, Any], World], dict[str, Any]]) -> int:
    """Run all jobs of the command line. A job that raises reports the error, and the next job runs."""
    registry.discover_all()
    torch.set_num_threads(1)
    world = process_group.join("cpu")
    refuse_pickles()
    torch.set_num_threads(1)
    answers: dict[str, Any] = {}
    for name, job in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")).items():
        try:
            answers[name] = carry_out(job, world)
        except Exception as error:  # noqa: BLE001 - the test reads the answer and fails
            print(f"{name}: {traceback.format_exc()}", file=sys.stderr, flush=True)
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
    if world.is_main:
        Path(sys.argv[1]).write_text(json.dumps(answers), encoding="utf-8")
    process_group.leave()
    return 0


def main() -> int:
    """Run all jobs with each strategy."""
    return run_jobs(carry_out)


if __name__ == "__main__":
    sys.exit(main())
