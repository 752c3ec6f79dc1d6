"""Parallel strategies: the interface, buckets and DDP's own log."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError, RanksPerReplica, options
from trainers.contract.config.options import Check, Option
from trainers.parallel import devices
from trainers.parallel.process_group import World


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Gradients that are averaged together, in the order in which they lie in the bucket.

    Attributes:
        parameters: the name of each parameter, and the bytes of its gradient.
    """

    parameters: tuple[tuple[str, int], ...]

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.parameters)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One piece of a bucket on its way through shared memory, in moments of `time.monotonic_ns`.

    Attributes:
        written_ns: this rank's part lies in the memory.
        met_ns: those of all ranks do.
    """

    num_bytes: int
    began_ns: int
    written_ns: int
    met_ns: int
    ended_ns: int


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """One all-reduce of a bucket on this rank, in moments of `time.monotonic_ns`."""

    began_ns: int
    ended_ns: int
    bucket: Bucket
    rounds: tuple[Round, ...]


@dataclass(kw_only=True)
class BucketNotes:
    """Where a strategy notes its all-reduces while a recording is under way."""

    averaged: list[Averaged] = field(default_factory=list)


# Far beyond any run.
_NEVER = 2**31 - 1
_NANOSECONDS = 1e9


class DdpLog:
    """Adds up the times of the all-reduces, where that costs nothing.

    On the CPU DDP notes moments of the host. On a GPU it would wait for the GPU in each step that it times,
    so there it times none. What is read is private to torch; where a version lacks it, the times are unknown.

    Args:
        is_needed: nobody else measures the all-reduces of this model.
    """

    def __init__(self, model: DistributedDataParallel, *, is_needed: bool) -> None:
        set_sample_rate = getattr(model, "_set_ddp_runtime_logging_sample_rate", None)
        self._read = getattr(model, "_get_ddp_logging_data", None)
        self._update = getattr(getattr(model, "logger", None), "set_runtime_stats_and_log", None)
        self._is_on = (
            is_needed
            and model.device_type == "cpu"
            and dist.get_world_size() > 1
            and None not in (set_sample_rate, self._read, self._update)
        )
        if set_sample_rate is not None:
            set_sample_rate(1 if self._is_on else _NEVER)
        self._spent_ns = self._hidden_ns = self._newest = 0

    def all_reduce_times(self) -> AllReduceTimes | None:
        """Return what all of them have taken so far; asked after each step, for DDP keeps only the newest."""
        if not self._is_on:
            return None
        data = self._newest_step()
        began = data.get("backward_comm_time_start", 0)
        if began > self._newest:
            self._newest = began
            self._spent_ns += data["backward_comm_time"]
            self._hidden_ns += data["backward_compute_comm_overlap_time"]
        return AllReduceTimes(spent_s=self._spent_ns / _NANOSECONDS, hidden_s=self._hidden_ns / _NANOSECONDS)

    def bucket_places(self) -> list[list[int]]:
        """Return for each bucket the places of its parameters among those trained; empty where unknown.

        DDP lays its buckets out anew after the first backward pass.
        """
        if self._update is None or self._read is None:
            return []
        places = str(self._newest_step().get("rebuilt_per_bucket_param_indices", ""))
        if not re.fullmatch(r"\d+( \d+)*(, \d+( \d+)*)*", places):
            return []
        return [[int(place) for place in bucket.split()] for bucket in places.split(",")]

    def _newest_step(self) -> dict[str, Any]:
        assert self._read is not None
        assert self._update is not None
        self._update()
        data: dict[str, Any] = self._read()
        return data


class Loss(Protocol):
    """What training asks of a loss: a tensor, or what a strategy computes in a way of its own."""

    def backward(self, gradient: Tensor | None = None) -> None:
        """Add up gradients; `gradient` is what backward begins with, None: 1."""

    def detach(self) -> Tensor:
        """Return the number, on its device; may be asked for after backward only."""


# The model's output, the targets and the micro-batch's weight -> its share of the loss of the step.
Criterion = Callable[[Any, Tensor, float], Tensor]


def weighted(loss: Tensor, weight: float) -> Tensor:
    """Return a mean loss times a micro-batch's weight; that of a whole batch is 1, which changes no bit."""
    return loss if weight == 1.0 else loss * weight


@dataclass(frozen=True, kw_only=True)
class AllReduceTimes:
    """What averaging gradients has taken on this rank since the start, in seconds.

    Attributes:
        spent_s: from the moment a bucket is ready until it is averaged; waiting for other ranks is in it.
        hidden_s: of it, while backward went on computing.
        waited_s: of it, waiting for other ranks; None where that cannot be told from moving gradients.
    """

    spent_s: float
    hidden_s: float
    waited_s: float | None = None

    def since(self, before: AllReduceTimes) -> AllReduceTimes:
        """Return what was added since an earlier moment."""
        return AllReduceTimes(
            spent_s=self.spent_s - before.spent_s,
            hidden_s=self.hidden_s - before.hidden_s,
            waited_s=None if self.waited_s is None else self.waited_s - (before.waited_s or 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryShares:
    """Over how many ranks each kind of memory is divided, as formulas: "one" is not at all, or only in part.

    Attributes:
        parameters: at their peak: weights that are all whole while a step computes are not divided.
        activations: those of the samples of one replica.
    """

    parameters: RanksPerReplica = "one"
    gradients: RanksPerReplica = "one"
    optimizer_state: RanksPerReplica = "one"
    activations: RanksPerReplica = "one"


# What is captured must be the same kernels on the same memory in each step: nothing may wait for other ranks.
NO_CUDA_GRAPHS = Check(
    holds="not cuda_graphs",
    field="cuda_graphs",
    allowed="false with {strategy}: only strategy ddp on one rank captures its steps",
)
# The ranks of a sharded or shared model would each scale the gradients of their own part.
NO_LOSS_SCALING = Check(
    holds="precision != 'fp16'",
    field="precision",
    allowed="fp32, tf32 or bf16, which need no scaling: with fp16 and {strategy} the ranks would each scale "
    "their own part",
)


class Strategy:
    """How one network trains on several ranks.

    Class attributes:
        options: the fields of the configuration that mean something with it.
        Options: a dataclass of options that only this strategy knows, each made by `setting`; in the
            configuration they are called `<strategy>.<option>`.
        checks: what must hold of a configuration; the page says them before the start.
        ranks_per_replica: how many ranks hold one copy of the model between them, as a formula over the
            configuration. Each copy (replica) sees samples of its own; the ranks of one copy see the same
            ones.
        is_collective: a forward pass needs all ranks, so evaluation and samples call it on all of them
            equally often.
        is_sharded: parameters or optimizer state lie in pieces on the ranks.
        rehearses: the first backward pass decides how later ones add up (DDP lays out its buckets), so a
            resumed run has to go through one before it is in step with a run that was never interrupted.
        memory_shares: what the ranks divide among them.
        gradient_copies: how often a rank holds its gradients, as a formula.
        libraries: what wrapping imports, some of it inside torch; imported before the model is built, so
            that nobody takes it for the model's memory.
        holds_replica: between steps each rank holds all weights, whole, so that replicas can be compared.
        takes_any_layout: parameters may lie in memory in another order than that of their dimensions.
        keeps_copies_without_sync: parameters lie on several ranks whose gradients nobody averages: they stay
            alike only as long as all of those ranks compute the same bits.
        measures_wait: backward ends with the all-reduce, and the computation waits for it there, so that
            waiting for others can be measured from a hook on the first layer.
        divides_passes: backward begins when forward is over, so that each has a time of its own.
        name, label, description, sharing: set by `@register_strategy`.

    Attributes:
        own: the values of its `Options`.
        computes_loss: `model` takes inputs and targets and returns the mean loss: both are compiled as one.
    """

    options: ClassVar[tuple[str, ...]] = ()
    Options: ClassVar[type[Any] | None] = None
    checks: ClassVar[tuple[Check, ...]] = ()
    ranks_per_replica: ClassVar[RanksPerReplica] = "one"
    is_collective: ClassVar[bool] = False
    is_sharded: ClassVar[bool] = False
    memory_shares: ClassVar[MemoryShares] = MemoryShares()
    gradient_copies: ClassVar[str] = "1"
    libraries: ClassVar[tuple[str, ...]] = ()
    keeps_copies_without_sync: ClassVar[bool] = False
    measures_wait: ClassVar[bool] = False
    divides_passes: ClassVar[bool] = True
    rehearses: ClassVar[bool] = False
    holds_replica: ClassVar[bool] = False
    takes_any_layout: ClassVar[bool] = False
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    description: ClassVar[str] = ""
    sharing: ClassVar[str] = ""

    network: nn.Module
    model: nn.Module

    def __init__(self, config: Config, world: World) -> None:
        self.config = config
        self.world = world
        self.own: Any = (
            None
            if self.Options is None
            else options.read_options(self.name, self.Options, config.plugin_options)
        )
        self.num_replicas = config.num_replicas(self.ranks_per_replica)
        self.replica = world.rank * self.num_replicas // world.world_size
        self.autocast: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        self.computes_loss = False

    @classmethod
    def why_not(cls, network: nn.Module) -> str | None:
        """Say why this network cannot be trained this way, or None. It may lie on the meta device."""
        del network
        return None

    @classmethod
    def own_options(cls) -> tuple[Option, ...]:
        """Return the options that only this strategy knows."""
        return options.declared_options(cls.name, cls.Options)

    @classmethod
    def all_checks(cls) -> tuple[Check, ...]:
        """Return what must hold of a configuration, also for reasons that concern several strategies."""
        no_scaling = (NO_LOSS_SCALING,) if cls.is_sharded or cls.is_collective else ()
        no_graphs = () if "cuda_graphs" in cls.options else (NO_CUDA_GRAPHS,)
        return (*cls.checks, *no_scaling, *no_graphs)

    @classmethod
    def why_not_config(cls, config: Config) -> str | None:
        """Say why this configuration cannot be trained this way, or None; needs no process group."""
        try:
            own = options.check_options(cls.own_options(), config.plugin_options)
        except ConfigError as error:
            return str(error)
        values = replace(config, plugin_options=own).values()
        problems = [problem for check in cls.all_checks() if (problem := check.problem(values))]
        return " ".join(map(str, problems)) or None

    @classmethod
    def check_declarations(cls) -> None:
        """See that options, checks and formulas name fields that there are.

        Raises:
            ValueError: naming what does not.
        """
        if not cls.sharing:
            raise ValueError(
                f"strategy {cls.name} does not say what its ranks do together: give it `sharing`"
            )
        if unknown := set(cls.options) - config_module.settings().keys():
            names = ", ".join(sorted(unknown))
            raise ValueError(f"strategy {cls.name} has options that are no fields: {names}")
        own = options.check_options(cls.own_options(), {})
        values = replace(Config(), plugin_options=own).values()
        for formula in (cls.ranks_per_replica, cls.gradient_copies, *asdict(cls.memory_shares).values()):
            options.evaluate_formula(formula, values)
        for check in cls.all_checks():
            options.evaluate_formula(check.holds, values)
            check.said(values)

    @property
    def counts(self) -> bool:
        """Whether this rank's evaluation counts in sums over all ranks: one rank of each replica."""
        return self.world.rank % (self.world.world_size // self.num_replicas) == 0

    @property
    def all_reduce(self) -> str | None:
        """What gradients are averaged over, once the network is wrapped; None: there is one rank."""
        return None if self.world.world_size == 1 else dist.get_backend()

    @property
    def all_reduce_times(self) -> AllReduceTimes | None:
        """What averaging gradients has taken so far; None where it cannot be told from backward."""
        return None

    def wrap(self, network: nn.Module) -> None:
        """Take the network (whole, the same on every rank, on its device); set `network` and `model`.

        `model` is what training calls; `network` holds the parameters the optimizer gets.
        """
        self.network = self.model = network

    def note_buckets(self, notes: BucketNotes | None) -> bool:
        """From now on note each gradient bucket that is averaged; None: no longer.

        False where that cannot be told from here; then nothing is noted.
        """
        del notes
        return False

    def gradient_buckets(self) -> tuple[Bucket, ...]:
        """Return the groups in which gradients are averaged, in their order; none where that is unknown."""
        return ()

    def inside_model(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which `network` is compiled as it is where `model` calls it."""
        return contextlib.nullcontext()

    def make_optimizer(
        self, optimizer: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **arguments: Any
    ) -> torch.optim.Optimizer:
        """Build the optimizer over parameter groups of `network`."""
        return optimizer(groups, **arguments)

    def gradient_sync(self, *, enabled: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of one forward and backward; not enabled, gradients only add up locally."""
        del enabled
        return contextlib.nullcontext()

    def criterion(self, criterion: Criterion) -> Callable[[Any, Tensor, float], Loss]:
        """Return what the loop calls with the output of `model` to get a micro-batch's share of the loss.

        The mean over all ranks of these shares, added up over the micro-batches, is the loss of the step.
        """
        return criterion

    def loss_function(self, criterion: Criterion) -> Callable[[Tensor, Tensor, float], Loss]:
        """Return what computes a share of the loss of a step: criterion(model(inputs), targets) * weight."""
        model, own_criterion = self.model, self.criterion(criterion)

        def loss_of(inputs: Tensor, targets: Tensor, weight: float) -> Loss:
            if self.computes_loss:
                return weighted(model(inputs, targets), weight)
            return own_criterion(model(inputs), targets, weight)

        return loss_of

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the model's output without training it (evaluation, samples), on every rank."""
        with self.autocast():
            output: Tensor = self.network(inputs)
        return output

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Shorten the gradients to this norm and return the norm they had."""
        return nn.utils.clip_grad_norm_(self.network.parameters(), max_norm)

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients; every rank must call it when `is_collective`."""
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        return nn.utils.get_total_norm(gradients)

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return `model` and `optimizer` state; sharded strategies give each rank's pieces (DTensor)."""
        return {"model": self.network.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        devices.align_state(optimizer)
