"""The training loop: read it from top to bottom, as in a DDP tutorial."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch
from torch import nn

from trainers import checkpoint, objective, samples
from trainers.checkpoint import CheckpointError, Progress
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.data import DataSpec, Split
from trainers.distributed import World
from trainers.meter import StepMeter
from trainers.reporter import Command, NullReporter
from trainers.sharding import ShardedBatches
from trainers.telemetry import Pulse

log = logging.getLogger(__name__)

PAUSE_POLL_S = 0.1
SAMPLE_EVERY_S = 10.0


@dataclass(kw_only=True)
class Job:
    """Everything one rank trains with."""

    run: RunDirectory
    config: Config
    world: World
    spec: DataSpec
    train: Split
    validation: Split
    network: nn.Module
    model: nn.Module
    optimizer: torch.optim.Optimizer
    reporter: NullReporter
    meter: StepMeter
    pulse: Pulse
    progress: Progress
    binding: dict[str, int]
    saved_step: int | None = None
    evaluated_step: int | None = None
    sampled_at: float = 0.0
    stood_still_s: float = 0.0

    def take_stood_still_s(self) -> float:
        """Return how long training stood still since the last call."""
        seconds, self.stood_still_s = self.stood_still_s, 0.0
        return seconds


def train(job: Job) -> str:
    """Train until the configured end or a stop; return why it ended, `finished` or `stopped`.

    `network` is the bare module, `model` the same wrapped for parallel training.
    """
    config, progress, meter = job.config, job.progress, job.meter
    batches = ShardedBatches(len(job.train), config.batch_size, seed=config.seed, world=job.world)
    clock = GradientClock(job.network)
    job.model.train()

    while progress.epoch < config.num_epochs and not _reached_max_steps(job):
        batches.set_epoch(progress.epoch)
        job.take_stood_still_s()  # what stood still between the epochs belongs to no step
        step_started = data_started = time.perf_counter()
        for shard in batches.starting_at(progress.batch_in_epoch):
            inputs, targets = job.train.batch(shard.indices)
            data_time_s = time.perf_counter() - data_started

            loss = objective.loss(job.model(inputs), targets) * shard.weight
            loss.backward()  # DDP averages the gradients over the ranks meanwhile
            wait_time_s = clock.seconds_since_own_gradients()
            meter.note_gradients()
            job.optimizer.step()
            job.optimizer.zero_grad()
            meter.settle()

            progress.step += 1
            progress.batch_in_epoch += 1
            step_ended = time.perf_counter()
            step_time_s = step_ended - step_started
            job.pulse.beat(progress.step, meter.known_step_time_s(step_time_s), data_time_s, wait_time_s)
            command = meter.step_done(
                loss,
                step=progress.step,
                epoch=progress.epoch,
                lr=job.optimizer.param_groups[0]["lr"],
                num_global=shard.num_global,
                step_time_s=step_time_s,
                data_time_s=data_time_s,
            )
            if _is_due(progress.step, config.eval_every_steps):
                evaluate(job)
            if _is_due(progress.step, config.checkpoint_every_steps):
                save(job, "schedule")
            if command is not None and obey(job, command) == "stopped":
                return "stopped"
            if _reached_max_steps(job):
                break
            sample_now_and_then(job)
            # A report belongs to the step after it; what stands still for good reason to none.
            step_started = step_ended + job.take_stood_still_s()
            data_started = time.perf_counter()
        else:
            command = meter.report()
            if config.eval_every_steps is None:
                evaluate(job)
            progress.epoch += 1
            progress.batch_in_epoch = 0
            log.info("epoch %d of %d done at step %d", progress.epoch, config.num_epochs, progress.step)
            if config.checkpoint_every_steps is None:
                save(job, "schedule")
            if command is not None and obey(job, command) == "stopped":
                return "stopped"

    return finish(job)


def finish(job: Job) -> str:
    """Report what is left, evaluate, save; return `finished`, or `stopped` when somebody wants that now."""
    command = job.meter.report()  # the steps since the last report, when `max_steps` ended an epoch early
    if command is not None and obey(job, command) == "stopped":
        return "stopped"
    evaluate(job)
    while not save(job, "end"):
        # The work is done but not kept: better to wait for somebody than to lose it.
        if (
            stay_paused(job, "The last checkpoint could not be saved: free some space, then resume.")
            == "stopped"
        ):
            return "stopped"
    return "finished"


def obey(job: Job, command: Command) -> str:
    """Carry out a command at the step all ranks agreed on; return `stopped` or `running`."""
    step = job.progress.step
    reporter = job.reporter
    log.info("all ranks agreed at step %d: %s", step, command.name)
    if command.name == "stop":
        reporter.state("stopping", "Stop was asked for.")
        if command.save and not save(job, "stop"):
            message = "Nothing could be saved, so the run goes on. Free some space, or stop without saving."
            reporter.answer(command, step=step, accepted=False, message=message)
            reporter.state("running", message)
            return "running"
        reporter.answer(command, step=step, accepted=True, message=f"Stopping after step {step}.")
        return "stopped"
    if command.name == "checkpoint":
        saved = save(job, "button")
        message = f"Saved at step {step}." if saved else f"Could not save at step {step}."
        reporter.answer(command, step=step, accepted=saved, message=message)
    elif command.name == "set_lr":
        for group in job.optimizer.param_groups:
            group["lr"] = command.learning_rate
        message = f"Learning rate is {command.learning_rate:g} from step {step + 1} on."
        reporter.answer(command, step=step, accepted=True, message=message)
    elif command.name == "resume":
        reporter.answer(command, step=step, accepted=False, message="The run is not paused.")
    elif command.name == "pause":
        reporter.answer(command, step=step, accepted=True, message=f"Paused after step {step}.")
        return stay_paused(job, f"Paused after step {step}.")
    return "running"


def stay_paused(job: Job, why: str) -> str:
    """Wait for `resume` or `stop`, all ranks together; return `running` or `stopped`."""
    started, stood_still_before_s = time.perf_counter(), job.stood_still_s
    job.reporter.state("paused", why)
    while True:
        time.sleep(PAUSE_POLL_S)
        command = job.meter.report()
        if command is None:
            continue
        if command.name == "resume":
            message = f"Going on from step {job.progress.step}."
            job.reporter.answer(command, step=job.progress.step, accepted=True, message=message)
            job.reporter.state("running", message)
            # A checkpoint taken during the pause is part of the pause.
            job.stood_still_s = stood_still_before_s + time.perf_counter() - started
            return "running"
        if command.name == "pause":
            job.reporter.answer(
                command, step=job.progress.step, accepted=False, message="It is paused already."
            )
        elif obey(job, command) == "stopped":
            return "stopped"
        elif command.name == "stop":
            job.reporter.state("paused", why)


def evaluate(job: Job) -> None:
    """Measure loss and metrics over the whole validation split and show what the model says."""
    step = job.progress.step
    if job.evaluated_step == step:
        return
    started = time.perf_counter()
    loss, metrics = objective.evaluate(
        job.network,
        job.validation,
        task=job.spec.task,
        batch_size=max(256, job.config.batch_size),
        world=job.world,
    )
    job.evaluated_step = step
    log.info("validation at step %d: loss %.4f, %s", step, loss, metrics)
    job.reporter.event("eval", step=step, epoch=job.progress.epoch, loss=loss, metrics=metrics)
    take_sample(job)
    job.stood_still_s += time.perf_counter() - started


def sample_now_and_then(job: Job) -> None:
    """Show what the model says when the last time is long ago (an epoch can take hours)."""
    if job.meter.just_reported and time.monotonic() - job.sampled_at > SAMPLE_EVERY_S:
        started = time.perf_counter()
        take_sample(job)
        job.stood_still_s += time.perf_counter() - started


def take_sample(job: Job) -> None:
    """Rank 0 asks the bare network; the others meet it again in the next all-reduce."""
    if not job.world.is_main:
        return
    job.sampled_at = time.monotonic()
    try:
        taken = samples.take(job.network, job.spec, job.validation, job.config.seed)
    except (RuntimeError, ValueError, LookupError) as error:
        # Only a picture for people: it must not end a run.
        job.reporter.warning("no_sample", f"No sample could be taken: {error}", "Training is not affected.")
        return
    if taken is not None:
        kind, content = taken
        job.reporter.event("sample", step=job.progress.step, type=kind, content=content)


def save(job: Job, reason: str) -> bool:
    """Save a checkpoint; tell whether this step is saved. A failed save never ends the run."""
    step = job.progress.step
    if job.saved_step == step:
        return True
    started = time.perf_counter()
    try:
        saved = checkpoint.save(job.run, job.progress, job.network, job.optimizer, job.world, job.binding)
    except CheckpointError as error:
        hint = "The run goes on. Free some space, then save again."
        job.reporter.warning("checkpoint_failed", f"Step {step} was not saved: {error}", hint)
        return False
    finally:
        stall_s = time.perf_counter() - started
        job.stood_still_s += stall_s
    job.saved_step = step
    log.info("checkpoint of step %d saved (%s), %.0f ms", step, reason, 1000 * stall_s)
    job.reporter.event(
        "checkpoint",
        step=step,
        path=f"checkpoints/{saved.path.name}",
        size_bytes=saved.size_bytes,
        duration_s=round(saved.duration_s, 4),
        stall_s=round(stall_s, 4),
        reason=reason,
    )
    return True


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _reached_max_steps(job: Job) -> bool:
    return job.config.max_steps is not None and job.progress.step >= job.config.max_steps


class GradientClock:
    """Tells how long backward waited for other ranks once this rank's own gradients were complete.

    Backward reaches the first layer last, so the first parameter's hook marks the end of the own work.
    On a GPU backward returns before the work is done, so that nothing can be said there.
    """

    def __init__(self, network: nn.Module) -> None:
        first = next(parameter for parameter in network.parameters() if parameter.requires_grad)
        self._measures = first.device.type == "cpu"
        self._own_done = 0.0
        if self._measures:
            first.register_post_accumulate_grad_hook(self._note)

    def seconds_since_own_gradients(self) -> float | None:
        """Call right after backward; None where it cannot be measured."""
        return time.perf_counter() - self._own_done if self._measures else None

    def _note(self, _parameter: torch.Tensor) -> None:
        self._own_done = time.perf_counter()
