"""Carries out commands from the page in a running job, at the step that all ranks agreed on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from torch import nn
from torch.utils.hooks import RemovableHandle

from trainers.contract.commands import COMMANDS, Command
from trainers.job import Job, evaluate, save, save_and_wait
from trainers.recording.recorder import StepRecorder

log = logging.getLogger(__name__)

PAUSE_POLL_S = 0.1


# Carries out one command on every rank at the agreed step and answers it; raises `Stopped` to end training.
Handler = Callable[[Job, Command], None]
_HANDLERS: dict[str, Handler] = {}


def handles(name: str) -> Callable[[Handler], Handler]:
    """Register a function as the handler of the command of this name."""

    assert name in COMMANDS

    def add(handler: Handler) -> Handler:
        _HANDLERS[name] = handler
        return handler

    return add


class Stopped(Exception):  # noqa: N818 - not an error: a user asked for it
    """Ends training on all ranks at the same step. Its text is the reason for the stop, if one was given."""


def execute(job: Job, command: Command) -> None:
    """Carry out a command on this rank.

    Raises:
        Stopped: if the command is a stop and was accepted.
    """
    log.info("all ranks agreed at step %d: %s", job.progress.step, command.name)
    _HANDLERS[command.name](job, command)


def evaluate_unless_stopped(job: Job) -> None:
    """Evaluate; interrupt the evaluation to stop, and restart it if the stop is refused."""
    while not evaluate(job):
        _execute_all(job)


def check_for_stop(job: Job) -> None:
    """Check for a stop between two micro-batches of a long step. Every rank must call this.

    A stop abandons the current step: the state before it is restored and saved, as if the step had not
    begun. If the stop is refused, the step continues.
    """
    if not job.step_start.is_stored:
        return  # short step, or first step of the run: the stop takes effect after the step
    is_stop_requested = job.meter.should_interrupt_step()
    job.observer.resume_step()
    if is_stop_requested:
        with job.step_start.restore_temporarily():
            _execute_all(job)
        job.observer.resume_step()


def finish(job: Job) -> None:
    """Report the remaining steps, evaluate and save, while still accepting a stop."""
    job.observer.end_recording("The run has finished.")
    command = job.meter.report()  # the steps since the last report, when `max_steps` ended an epoch early
    if command is not None:
        execute(job, command)
    evaluate_unless_stopped(job)
    while not save_and_wait(job, "end"):
        # Training is done but not saved: wait until a user frees space, to keep the model.
        stay_paused(job, "The last checkpoint could not be saved: see the warning, then resume.")


def _execute_all(job: Job) -> None:
    """Carry out all waiting commands in order. Returns if none of them is a stop, or the stop is refused."""
    while (command := job.meter.report()) is not None:
        execute(job, command)


def stay_paused(job: Job, reason: str) -> None:
    """Wait for `resume` or a stop, all ranks together."""
    with job.observer.exclude_time():
        job.reporter.state("paused", reason)
        while (command := _next_command(job)).name != "resume":
            if command.name == "pause":
                message = "The run is already paused."
                job.reporter.answer(command, step=job.progress.step, accepted=False, message=message)
                continue
            execute(job, command)
            if command.name == "stop":  # refused: the checkpoint could not be saved
                job.reporter.state("paused", reason)
        message = f"Continuing from step {job.progress.step:,}."
        job.reporter.answer(command, step=job.progress.step, accepted=True, message=message)
        job.reporter.state("running", message)


def _next_command(job: Job) -> Command:
    """Wait for a command, all ranks together."""
    while True:
        time.sleep(PAUSE_POLL_S)
        if (command := job.meter.report()) is not None:
            return command


@handles("stop")
def _stop(job: Job, command: Command) -> None:
    step, reporter = job.progress.step, job.reporter
    job.observer.end_recording("The run was stopped.")
    reporter.state("stopping", command.why or "Stop was requested.")
    if command.save and not save_and_wait(job, "stop") and not command.anyway:
        message = "Nothing could be saved, so the run continues. Stop without saving ends it."
        reporter.answer(command, step=step, accepted=False, message=message)
        reporter.state("running", message)
        return
    reporter.answer(command, step=step, accepted=True, message=f"Stopping after step {step:,}.")
    raise Stopped(command.why)


@handles("checkpoint")
def _checkpoint(job: Job, command: Command) -> None:
    """Start a save; `SaveAnswers` answers the command when the checkpoint is on disk."""
    step = job.progress.step
    job.answers.save_commands[step] = command
    save(job, "button")
    if job.checkpointer.is_saved(step) and job.answers.save_commands.pop(step, None) is not None:
        job.reporter.answer(command, step=step, accepted=True, message=f"Step {step:,} is already saved.")


@handles("pause")
def _pause(job: Job, command: Command) -> None:
    job.observer.end_recording("The run was paused.")
    message = f"Paused after step {job.progress.step:,}."
    job.reporter.answer(command, step=job.progress.step, accepted=True, message=message)
    stay_paused(job, message)


@handles("resume")
def _resume(job: Job, command: Command) -> None:
    """Refuse to resume: a paused run receives this command in `stay_paused` instead."""
    job.reporter.answer(command, step=job.progress.step, accepted=False, message="The run is not paused.")


@handles("set_lr")
def _set_learning_rate(job: Job, command: Command) -> None:
    step, rate = job.progress.step, command.learning_rate
    job.progress.learning_rate = rate
    next_rate = job.rate.at(job.rate.position(job.progress), rate)
    message = f"Learning rate is {rate:g} from step {step + 1:,} on."
    if job.config.lr_schedule != "constant" or next_rate != rate:
        explanation = "warm-up and schedule continue from it"
        message = (
            f"Full learning rate is {rate:g} from step {step + 1:,} on; {explanation}: "
            f"{next_rate:g} in that step."
        )
    job.reporter.answer(command, step=step, accepted=True, message=message)


@handles("record")
def _record(job: Job, command: Command) -> None:
    """Replace the observer by a recorder, which restores the usual observer after the steps."""
    step, usual_observer = job.progress.step, job.observer
    refusal = (
        "A recording is already in progress."
        if usual_observer.is_recording
        else "The run has no step left to record."
        if job.has_ended()
        else None
    )
    if refusal is not None:
        job.reporter.answer(command, step=step, accepted=False, message=refusal)
        return

    def restore_observer() -> None:
        job.observer = usual_observer

    recorder = StepRecorder(
        run=job.run,
        world=job.world,
        strategy=job.strategy,
        reporter=job.reporter,
        wrapped=usual_observer,
        num_steps=command.num_steps,
        restore_observer=restore_observer,
    )
    job.observer = recorder.observer
    message = f"Recording from step {step + 1:,} on; number of steps: {command.num_steps}."
    job.reporter.answer(command, step=step, accepted=True, message=message)


@handles("slow_rank")
def _slow_rank(job: Job, command: Command) -> None:
    """Make one rank sleep in each step from now on; a delay of 0 ends the slowdown."""
    step, rank, delay_ms = job.progress.step, command.rank, command.delay_ms
    num_ranks = job.world.world_size
    if rank >= num_ranks:
        message = f"There is no rank {rank}: this run has ranks 0 to {num_ranks - 1}."
        job.reporter.answer(command, step=step, accepted=False, message=message)
        return
    if rank == job.world.rank:
        if job.slowed is not None:
            job.slowed.remove()
        job.slowed = _add_delay_hook(job, delay_ms / 1000) if delay_ms else None
    message = f"Rank {rank} sleeps {delay_ms} ms in each step from step {step + 1:,} on, as requested."
    if delay_ms == 0:
        message = f"Rank {rank} is no longer slowed down from step {step + 1:,} on."
    job.reporter.answer(command, step=step, accepted=True, message=message)


def _add_delay_hook(job: Job, delay_s: float) -> RemovableHandle:
    """Sleep before each forward pass in training, so that this rank appears to compute longer.

    A forward hook costs nothing in runs that do not use it. The delay is spread over the micro-batches.
    """
    delay_s /= job.config.gradient_accumulation_steps

    def sleep(model: nn.Module, _inputs: object) -> None:
        if model.training:
            time.sleep(delay_s)

    return job.strategy.model.register_forward_pre_hook(sleep)
