"""The interface of parallel strategies, gradient buckets, and the times in DDP's log."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError, RanksPerReplica, options
from trainers.contract.config.options import Check, Option
from trainers.parallel import precision
from trainers.parallel.process_group import World

# Gradients that are averaged together: name and gradient size in bytes of each parameter, in their order.
Bucket = tuple[tuple[str, int], ...]


class Round(NamedTuple):
    """Timestamps (`time.monotonic_ns`) of one chunk of a bucket in the shared-memory all-reduce.

    Attributes:
        written_ns: this rank has written its share.
        met_ns: all ranks have written theirs.
    """

    began_ns: int
    written_ns: int
    met_ns: int
    ended_ns: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """One all-reduce of a bucket on this rank; timestamps of `time.monotonic_ns`."""

    began_ns: int
    ended_ns: int
    bucket: Bucket
    rounds: tuple[Round, ...]


# Sampling interval of DDP's timers that no run reaches, which turns them off.
_NEVER = 2**31 - 1
_NANOSECONDS = 1e9


class DdpLog:
    """Sums the all-reduce times that DDP measures; CPU ranks only.

    On the CPU, DDP's timers read the clock, which is free. On a GPU they would synchronise in each timed
    step, so they are off. The methods are private to torch; if a version lacks them, times are unknown.

    Args:
        is_needed: False if the all-reduces of this model are measured elsewhere.
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
        self._spent_ns = self._hidden_ns = self._latest_start_ns = 0

    def all_reduce_times(self) -> AllReduceTimes | None:
        """Return the totals so far. Must be called after each step: DDP keeps only the latest step."""
        if not self._is_on:
            return None
        data = self._latest_step()
        start_ns = data.get("backward_comm_time_start", 0)
        if start_ns > self._latest_start_ns:
            self._latest_start_ns = start_ns
            self._spent_ns += data["backward_comm_time"]
            self._hidden_ns += data["backward_compute_comm_overlap_time"]
        return AllReduceTimes(spent_s=self._spent_ns / _NANOSECONDS, hidden_s=self._hidden_ns / _NANOSECONDS)

    def bucket_indices(self) -> list[list[int]]:
        """Return the indices of each bucket's parameters among the trained ones; empty if unknown.

        DDP rebuilds its buckets after the first backward pass.
        """
        if self._update is None or self._read is None:
            return []
        indices_text = str(self._latest_step().get("rebuilt_per_bucket_param_indices", ""))
        if not re.fullmatch(r"\d+( \d+)*(, \d+( \d+)*)*", indices_text):
            return []
        return [[int(index) for index in bucket.split()] for bucket in indices_text.split(",")]

    def _latest_step(self) -> dict[str, Any]:
        assert self._read is not None
        assert self._update is not None
        self._update()
        data: dict[str, Any] = self._read()
        return data


class Loss(Protocol):
    """Interface of a loss in the training loop: a tensor, or an object of a strategy."""

    def backward(self, gradient: Tensor | None = None) -> None:
        """Accumulate gradients, starting from `gradient` (None: 1)."""

    def detach(self) -> Tensor:
        """Return the value, on its device. Valid only after backward."""


# (model output, targets, weight of the micro-batch) -> its share of the step's loss.
Criterion = Callable[[Any, Tensor, float], Tensor]


def apply_weight(loss: Tensor, weight: float) -> Tensor:
    """Return a mean loss times a micro-batch's weight. A weight of 1, for a whole batch, changes no bits."""
    return loss if weight == 1.0 else loss * weight


@dataclass(frozen=True, kw_only=True)
class AllReduceTimes:
    """Total time of gradient averaging on this rank since the start, in seconds.

    Attributes:
        spent_s: from when a bucket is ready until it is averaged, including waiting for other ranks.
        hidden_s: the part of `spent_s` that overlaps with backward's computation.
        waited_s: the part of `spent_s` spent waiting for other ranks; None if not measured separately.
    """

    spent_s: float
    hidden_s: float
    waited_s: float | None = None

    def since(self, earlier: AllReduceTimes) -> AllReduceTimes:
        """Return the difference to an earlier value."""
        return AllReduceTimes(
            spent_s=self.spent_s - earlier.spent_s,
            hidden_s=self.hidden_s - earlier.hidden_s,
            waited_s=None if self.waited_s is None else self.waited_s - (earlier.waited_s or 0.0),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryShares:
    """Number of ranks that each kind of memory is divided over, as formulas; "one" means undivided.

    Attributes:
        parameters: at peak memory, so weights that a strategy gathers completely during a step are undivided.
        activations: for the samples of one replica.
    """

    parameters: RanksPerReplica = "one"
    gradients: RanksPerReplica = "one"
    optimizer_state: RanksPerReplica = "one"
    activations: RanksPerReplica = "one"


# A captured graph replays the same kernels on the same memory, so a step must not wait for other ranks.
NO_CUDA_GRAPHS = Check(
    holds="not cuda_graphs",
    field="cuda_graphs",
    allowed="false with {strategy}: only strategy ddp on one rank captures its steps",
)
# The ranks of a sharded model would each choose a different scale for their part of the gradients.
NO_LOSS_SCALING = Check(
    holds="precision != 'fp16'",
    field="precision",
    allowed="fp32, tf32 or bf16, which need no scaling: with fp16 and {strategy} the ranks would each scale "
    "their own part",
)


class Strategy:
    """How one network trains on several ranks.

    Class attributes:
        options: configuration fields that it uses.
        Options: a dataclass of options specific to this strategy, each created by `setting`; their names in
            the configuration are `<strategy>.<option>`.
        checks: conditions on the configuration; the page shows violations before the start.
        ranks_per_replica: number of ranks that share one copy of the model, as a formula over the
            configuration. Each copy (replica) sees different samples; the ranks of one copy see the same.
        is_collective: a forward pass needs all ranks, so evaluation and samples must call it on all of them
            equally often.
        is_sharded: parameters or optimizer state are sharded over the ranks.
        rehearses: the first backward pass determines the order of later sums (DDP rebuilds its buckets), so
            a resumed run must do one before it can be bit-equal to an uninterrupted run.
        memory_shares: how memory is divided over the ranks.
        gradient_copies: number of copies of its gradients that a rank holds, as a formula.
        libraries: modules that `wrap` imports. They are imported before the model is built, so that their
            memory is not counted as the model's.
        holds_replica: each rank holds all weights between steps, so that replicas can be compared.
        takes_any_layout: parameters may have any memory layout, such as channels last.
        keeps_copies_without_sync: several ranks hold the same parameters and nothing averages their
            gradients; the copies stay equal only while all of these ranks compute the same bits.
        measures_wait: the computation waits for the all-reduce at the end of backward, so that waiting for
            other ranks can be measured with a hook on the first layer.
        divides_passes: backward begins after forward has ended, so that each can be timed.
        name, label, description, sharing: set by `@register_strategy`.

    Attributes:
        own: the values of its `Options`.
        computes_loss: `model` maps inputs and targets to the mean loss, because both are compiled together.
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
        """Return why this strategy cannot train a network, possibly on the meta device, or None."""
        del network
        return None

    @classmethod
    def own_options(cls) -> tuple[Option, ...]:
        """Return the options specific to this strategy."""
        return options.declared_options(cls.name, cls.Options)

    @classmethod
    def all_checks(cls) -> tuple[Check, ...]:
        """Return all conditions on the configuration, including those common to several strategies."""
        no_scaling = (NO_LOSS_SCALING,) if cls.is_sharded or cls.is_collective else ()
        no_graphs = () if "cuda_graphs" in cls.options else (NO_CUDA_GRAPHS,)
        return (*cls.checks, *no_scaling, *no_graphs)

    @classmethod
    def config_problem(cls, config: Config) -> str | None:
        """Return why this strategy cannot be used with the configuration, or None. Needs no process group."""
        try:
            plugin_options = options.check_options(cls.own_options(), config.plugin_options)
        except ConfigError as error:
            return str(error)
        values = replace(config, plugin_options=plugin_options).values()
        problems = [problem for check in cls.all_checks() if (problem := check.problem(values))]
        return " ".join(map(str, problems)) or None

    @classmethod
    def check_declarations(cls) -> None:
        """Check that options, checks and formulas refer to existing fields.

        Raises:
            ValueError: if one does not; names it.
        """
        if not cls.sharing:
            raise ValueError(
                f"strategy {cls.name} does not describe what its ranks communicate: pass `sharing` to "
                "@register_strategy"
            )
        if unknown := set(cls.options) - config_module.settings().keys():
            names = ", ".join(sorted(unknown))
            raise ValueError(f"strategy {cls.name} has options that are not fields: {names}")
        plugin_options = options.check_options(cls.own_options(), {})
        values = replace(Config(), plugin_options=plugin_options).values()
        for formula in (cls.ranks_per_replica, cls.gradient_copies, *asdict(cls.memory_shares).values()):
            options.evaluate_formula(formula, values)
        for check in cls.all_checks():
            options.evaluate_formula(check.holds, values)
            check.violation(values)

    @property
    def counts(self) -> bool:
        """True if this rank contributes to sums over evaluations: one rank per replica does."""
        return self.world.rank % (self.world.world_size // self.num_replicas) == 0

    @property
    def all_reduce(self) -> str | None:
        """The backend that averages gradients, known after `wrap`; None with one rank."""
        return None if self.world.world_size == 1 else dist.get_backend()

    @property
    def all_reduce_times(self) -> AllReduceTimes | None:
        """Total time of averaging gradients so far; None if it cannot be separated from backward."""
        return None

    def wrap(self, network: nn.Module) -> None:
        """Set `network` and `model` from a network that is complete and equal on every rank.

        Training calls `model`; the optimizer gets the parameters of `network`.
        """
        self.network = self.model = network

    def note_buckets(self, notes: list[Averaged] | None) -> bool:
        """Append an entry to `notes` for each averaged gradient bucket from now on; None ends it.

        Returns:
            False if this strategy cannot observe its buckets.
        """
        del notes
        return False

    def gradient_buckets(self) -> tuple[Bucket, ...]:
        """Return the gradient buckets in the order of averaging; empty if unknown."""
        return ()

    def inside_model(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which compiling `network` gives the same result as inside `model`."""
        return contextlib.nullcontext()

    def make_optimizer(
        self, optimizer: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **arguments: Any
    ) -> torch.optim.Optimizer:
        """Create the optimizer for parameter groups of `network`."""
        return optimizer(groups, **arguments)

    def gradient_sync(self, *, enabled: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of a forward and backward pass; if disabled, gradients accumulate locally."""
        del enabled
        return contextlib.nullcontext()

    def criterion(self, criterion: Criterion) -> Callable[[Any, Tensor, float], Loss]:
        """Return a function from the output of `model` to a micro-batch's share of the loss.

        The loss of the step is the mean over the ranks of these shares, summed over the micro-batches.
        """
        return criterion

    def loss_function(self, criterion: Criterion) -> Callable[[Tensor, Tensor, float], Loss]:
        """Return a function for a share of the step's loss: criterion(model(inputs), targets) * weight."""
        model, own_criterion = self.model, self.criterion(criterion)

        def compute_loss(inputs: Tensor, targets: Tensor, weight: float) -> Loss:
            if self.computes_loss:
                return apply_weight(model(inputs, targets), weight)
            return own_criterion(model(inputs), targets, weight)

        return compute_loss

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the model's output for evaluation and samples, on every rank."""
        with self.autocast():
            output: Tensor = self.network(inputs)
        return output

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Clip the gradients to this norm; return the norm before clipping."""
        return nn.utils.clip_grad_norm_(self.network.parameters(), max_norm)

    def gradient_norm(self) -> Tensor:
        """Return the norm of all gradients. If `is_collective`, every rank must call it."""
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        return nn.utils.get_total_norm(gradients)

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return `model` and `optimizer` state; sharded strategies return this rank's shards (DTensor)."""
        return {"model": self.network.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        precision.align_state(optimizer)
