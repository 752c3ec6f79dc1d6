"""Pipeline parallelism (Huang et al. 2018, "GPipe"): each rank holds consecutive layers, called a stage.

A batch is split into micro-batches that pass through the stages one after another: all forward, then all
backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.contract.config import Config, RanksPerReplica
from trainers.contract.config.options import Check
from trainers.parallel.batch_norm import has_batch_norm
from trainers.parallel.process_group import World, gather_json
from trainers.parallel.sharded import ShardedStrategy
from trainers.parallel.strategy import Criterion, MemoryShares
from trainers.registry import register_strategy

if TYPE_CHECKING:
    from torch.distributed.pipelining import ScheduleGPipe

LossOf = Callable[[Tensor], Tensor]


@register_strategy(
    "pipeline",
    label="Pipeline",
    description="Each rank holds consecutive layers; micro-batches pass from one rank to the next.",
    sharing="Each rank holds consecutive layers; micro-batches pass through all ranks and back.",
)
class Pipeline(ShardedStrategy):
    """Trains `network.pipeline_stages(world_size)`, one stage per rank."""

    options: ClassVar[tuple[str, ...]] = ("pipeline_microbatches",)
    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            holds="batch_size % pipeline_microbatches == 0",
            field="pipeline_microbatches",
            allowed="a number that divides the batch of {batch_size}",
        ),
    )
    ranks_per_replica: ClassVar[RanksPerReplica] = "all"
    libraries: ClassVar[tuple[str, ...]] = ("torch.distributed.pipelining",)
    memory_shares: ClassVar[MemoryShares] = MemoryShares(
        parameters="all", gradients="all", optimizer_state="all", activations="all"
    )
    owns_plain: ClassVar[bool] = True
    divides_passes: ClassVar[bool] = False

    def __init__(self, config: Config, world: World) -> None:
        super().__init__(config, world)
        self._is_last = world.rank == world.world_size - 1
        self._loss: _MicroBatchLosses | None = None
        self._schedule: ScheduleGPipe | None = None
        # Input shape -> (forward schedule, a tensor like the last stage's output).
        self._forward_only: dict[tuple[int, ...], tuple[ScheduleGPipe, Tensor]] = {}

    @classmethod
    def why_not(cls, network: nn.Module) -> str | None:
        if not callable(getattr(network, "pipeline_stages", None)):
            return "it does not define stages (it has no pipeline_stages)"
        if has_batch_norm(network):
            return "its batch norms would normalise each micro-batch instead of the whole batch"
        return None

    def wrap(self, network: nn.Module) -> None:
        """Keep this rank's stage and free the weights of all other stages.

        Raises:
            ValueError: if there are more ranks than possible stages.
        """
        stages: list[nn.Module] = network.pipeline_stages(self.world.world_size)  # type: ignore[operator]
        self.network = stages[self.world.rank]
        self.model = _DeferredModel(self.network)
        stage_tensors = {*self.network.parameters(), *self.network.buffers()}
        named_tensors = [*network.named_parameters(), *network.named_buffers()]
        self._names: dict[Tensor, str] = {
            tensor: name for name, tensor in named_tensors if tensor in stage_tensors
        }

    def criterion(self, criterion: Criterion) -> Callable[[Tensor, Tensor, float], PipelineLoss]:
        """Return a function that creates a `PipelineLoss`; its `backward` runs both passes of all stages."""
        return partial(PipelineLoss, self, criterion)

    def run(self, inputs: Tensor, loss_of: LossOf) -> Tensor:
        """Run one batch forward and backward; the last rank returns the loss, all other ranks return 0.

        The loss is multiplied by the number of ranks, because the loop takes the mean over the ranks. Stages
        exchange tensors of one fixed shape, so a smaller batch is padded; padding is excluded from the loss.
        """
        num_micro_batches = self.config.pipeline_microbatches
        padded_inputs = _pad_batch(inputs, self.config.batch_size)
        if self._schedule is None:
            micro_batch = padded_inputs[: self.config.batch_size // num_micro_batches]
            self._schedule, _ = self._make_schedule(micro_batch, num_micro_batches, self._micro_batch_loss)
        arguments = (padded_inputs,) if self.world.is_main else ()
        if not self._is_last:
            self._schedule.step(*arguments)
            return torch.zeros((), device=self.world.device)
        self._loss = _MicroBatchLosses(loss_of, num_micro_batches, num_real=len(inputs))
        self._schedule.step(*arguments, target=torch.arange(num_micro_batches))
        loss = self._loss.total
        self._loss = None
        assert loss is not None
        return loss * self.world.world_size

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the model's output on every rank; the last rank broadcasts it."""
        shape = tuple(inputs.shape)
        if shape not in self._forward_only:
            self._forward_only[shape] = self._make_schedule(inputs, 1)
        schedule, like_output = self._forward_only[shape]
        arguments = (inputs,) if self.world.is_main else ()
        output = schedule.step(*arguments)
        if output is None:
            output = torch.empty_like(like_output)
        scores: Tensor = output.detach().contiguous()
        dist.broadcast(scores, src=self.world.world_size - 1)
        return scores

    def names(self) -> dict[Tensor, str]:
        """Return names in the unsplit network, so that a run with another number of stages can load them."""
        return self._names

    def state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return this stage's weights and optimizer state by their names in the unsplit network."""
        local_names: dict[Tensor, str] = super().names()
        stage_state = self.network.state_dict()
        model = {
            name: stage_state[local_names[tensor]]
            for tensor, name in self._names.items()
            if local_names[tensor] in stage_state
        }
        state = super().state_dict(optimizer)
        return {"model": model, "optimizer": state["optimizer"]}

    def share_buffers(self) -> None:
        """Do nothing: every buffer is on one rank only."""

    def _make_schedule(
        self,
        micro_batch: Tensor,
        num_micro_batches: int,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> tuple[ScheduleGPipe, Tensor]:
        """Return a schedule for micro-batches of this shape, and a tensor like the last stage's output.

        Without a loss, the schedule runs forward only. Every rank must call it. The input and output of each
        stage are passed explicitly: otherwise torch would exchange them between ranks as pickles.
        """
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        world = self.world
        module = _Autocast(self.network, lambda: self.autocast())
        shapes = self._try_stages(module, micro_batch)
        stage_input, stage_output = (
            _zeros(shape, world.device) for shape in shapes[world.rank : world.rank + 2]
        )
        if loss is not None:
            stage_output.requires_grad_()
            if not world.is_main:
                stage_input.requires_grad_()
        stage = PipelineStage(
            module,
            world.rank,
            world.world_size,
            world.device,
            input_args=stage_input,
            output_args=stage_output,
        )
        try:
            schedule = ScheduleGPipe(stage, num_micro_batches, loss_fn=loss, scale_grads=False)
        except ValueError:  # torch 2.8 refuses fewer micro-batches than stages, although GPipe can run them
            schedule = ScheduleGPipe(stage, world.world_size, loss_fn=loss, scale_grads=False)
            schedule._n_microbatches = num_micro_batches  # noqa: SLF001
        return schedule, _zeros(shapes[-1], world.device)

    def _try_stages(self, module: nn.Module, micro_batch: Tensor) -> list[Any]:
        """Return the shape of a micro-batch before the first and after each stage, by a forward pass."""
        world = self.world
        shapes = [_shape_of(micro_batch)]
        devices = [world.device] if world.device.type == "cuda" else []
        for rank in range(world.world_size):
            output_shape = None
            if rank == world.rank:
                with torch.no_grad(), torch.random.fork_rng(devices=devices):
                    output_shape = _shape_of(
                        module(micro_batch if rank == 0 else _zeros(shapes[-1], world.device))
                    )
            shapes.append(gather_json(output_shape, world.slow_group)[rank])
        return shapes

    def _micro_batch_loss(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss is not None
        share: Tensor = _MicroBatchLoss.apply(output, self._loss, int(number))  # type: ignore[no-untyped-call]
        return share


class _DeferredModel(nn.Module):
    """The model that the loop calls. Returns its inputs; `PipelineLoss.backward` computes later."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class PipelineLoss:
    """The loss of a batch, computed in `backward`, where the schedule runs both passes together."""

    def __init__(
        self, pipeline: Pipeline, criterion: Criterion, inputs: Tensor, targets: Tensor, weight: float
    ) -> None:
        self._pipeline, self._criterion = pipeline, criterion
        self._inputs, self._targets, self._weight = inputs, targets, weight
        self._total: Tensor | None = None

    def backward(self, gradient: Tensor | None = None) -> None:
        """Run the batch forward and backward through all stages; every rank must call it."""
        del gradient  # always 1: fp16 is not allowed, because each stage would choose a different scale
        self._total = self._pipeline.run(self._inputs, self._loss_of)

    def detach(self) -> Tensor:
        """Return this rank's share of the loss; valid after backward."""
        assert self._total is not None, "the loss of a pipeline is known after backward"
        return self._total

    def _loss_of(self, output: Tensor) -> Tensor:
        with self._pipeline.autocast():
            return self._criterion(output, self._targets, self._weight)


class _Autocast(nn.Module):
    """A stage whose forward pass runs under autocast."""

    def __init__(
        self, stage: nn.Module, autocast: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> None:
        super().__init__()
        self.stage = stage
        self._enter = autocast

    def forward(self, inputs: Tensor) -> Tensor:
        with self._enter():
            output: Tensor = self.stage(inputs)
        return output


class _MicroBatchLosses:
    """Collects the outputs of all micro-batches and computes loss and gradient for the complete batch.

    GPipe starts the first backward after the last forward, so the loss can be any function of the batch.
    """

    def __init__(self, loss_of: LossOf, num_micro_batches: int, *, num_real: int) -> None:
        self.total: Tensor | None = None
        self._outputs: dict[int, Tensor] = {}
        self._loss_of = loss_of
        self._num_micro_batches = num_micro_batches
        self._num_real = num_real
        self._gradients: tuple[Tensor, ...] = ()

    def add(self, number: int, output: Tensor) -> None:
        """Add the output of a micro-batch."""
        self._outputs[number] = output
        self._gradients = ()

    def gradient(self, number: int) -> Tensor:
        """Return the gradient of the loss with respect to a micro-batch's output."""
        if not self._gradients:
            outputs = [self._outputs[index].requires_grad_() for index in range(self._num_micro_batches)]
            with torch.enable_grad():
                loss = self._loss_of(torch.cat(outputs)[: self._num_real])
            self._gradients = torch.autograd.grad(loss, outputs)
            self.total = loss.detach()
        return self._gradients[number]


class _MicroBatchLoss(torch.autograd.Function):
    """Placeholder for a micro-batch's loss; its backward returns the gradient of the batch's loss."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, loss: _MicroBatchLosses, number: int) -> Tensor:
        ctx.loss, ctx.number = loss, number
        loss.add(number, output.detach())
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.loss.gradient(ctx.number) * gradient, None, None


def _shape_of(tensor: Tensor) -> Any:
    """Return shape, strides and dtype of a tensor as a JSON value."""
    return list(tensor.shape), list(tensor.stride()), str(tensor.dtype).removeprefix("torch.")


def _zeros(shape: Any, device: torch.device) -> Tensor:
    """Return a tensor of zeros of a shape from `_shape_of`."""
    size, stride, dtype = shape
    return torch.empty_strided(size, stride, dtype=getattr(torch, dtype), device=device).zero_()


def _pad_batch(inputs: Tensor, num_samples: int) -> Tensor:
    """Pad a batch to `num_samples` by repeating the last sample."""
    missing = num_samples - len(inputs)
    return inputs if missing == 0 else torch.cat([inputs, inputs[-1:].expand(missing, *inputs.shape[1:])])
