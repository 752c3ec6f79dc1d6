"""Obeys what the page asks of a running job, at the step all ranks agreed on."""

from __future__ import annotations

import logging
import time

from trainers.job import Job, evaluate, save, save_and_wait
from trainers.report.reporter import Command

log = logging.getLogger(__name__)

PAUSE_POLL_S = 0.1


def obey(job: Job, command: Command) -> str:
    """Carry out a command; return `stopped` or `running`."""
    step, reporter = job.progress.step, job.reporter
    log.info("all ranks agreed at step %d: %s", step, command.name)
    if command.name == "stop":
        return _stop(job, command)
    if command.name == "checkpoint":
        _checkpoint(job, command)
    elif command.name == "set_lr":
        job.progress.learning_rate = command.learning_rate
        message = f"Learning rate is {command.learning_rate:g} from step {step + 1} on."
        if job.config.lr_schedule != "constant":
            message = (
                f"The schedule continues from a full rate of {command.learning_rate:g} at step {step + 1}."
            )
        reporter.answer(command, step=step, accepted=True, message=message)
    elif command.name == "resume":
        reporter.answer(command, step=step, accepted=False, message="The run is not paused.")
    elif command.name == "pause":
        reporter.answer(command, step=step, accepted=True, message=f"Paused after step {step}.")
        return stay_paused(job, f"Paused after step {step}.")
    return "running"


def evaluate_unless_stopped(job: Job) -> str:
    """Evaluate, or break that off for a stop; return `running` or `stopped`."""
    while not evaluate(job):
        if _obey_all(job) == "stopped":
            return "stopped"
    return "running"


def obey_within_step(job: Job) -> str:
    """Between two micro-batches of a long step, see whether somebody wants to stop; every rank must call it.

    The step is left then: saved is the one before it, as if this one had not begun. Where the stop is
    refused, the step goes on. Returns `running` or `stopped`.
    """
    if not job.step_start.is_noted:
        return "running"  # a step that is over soon
    is_wanted = job.meter.should_leave_step()
    job.clock.leave_out(0.0)  # what this took is no fetching of data
    if not is_wanted:
        return "running"
    with job.step_start.put_back():
        outcome = _obey_all(job)
    job.clock.leave_out(job.take_stood_still_s())
    return outcome


def _obey_all(job: Job) -> str:
    """Obey all that was asked: what came before a stop is first, and the stop may be refused."""
    while (command := job.meter.report()) is not None:
        if obey(job, command) == "stopped":
            return "stopped"
    return "running"


def stay_paused(job: Job, why: str) -> str:
    """Wait for `resume` or `stop`, all ranks together; return `running` or `stopped`."""
    started, stood_still_before_s = time.perf_counter(), job.stood_still_s
    step = job.progress.step
    job.reporter.state("paused", why)
    while True:
        time.sleep(PAUSE_POLL_S)
        command = job.meter.report()
        if command is None:
            continue
        if command.name == "resume":
            message = f"Continuing from step {step}."
            job.reporter.answer(command, step=step, accepted=True, message=message)
            job.reporter.state("running", message)
            # A checkpoint taken during the pause is part of the pause.
            job.stood_still_s = stood_still_before_s + time.perf_counter() - started
            return "running"
        if command.name == "pause":
            job.reporter.answer(command, step=step, accepted=False, message="The run is already paused.")
        elif obey(job, command) == "stopped":
            return "stopped"
        elif command.name == "stop":
            job.reporter.state("paused", why)


def _stop(job: Job, command: Command) -> str:
    step, reporter = job.progress.step, job.reporter
    reporter.state("stopping", command.why or "Stop was asked for.")
    if command.save and not save_and_wait(job, "stop"):
        message = "Nothing could be saved, so the run continues. Free some space, or stop without saving."
        reporter.answer(command, step=step, accepted=False, message=message)
        reporter.state("running", message)
        return "running"
    reporter.answer(command, step=step, accepted=True, message=f"Stopping after step {step}.")
    job.stopped_because = command.why
    return "stopped"


def _checkpoint(job: Job, command: Command) -> None:
    """Start a save; the answer comes when it is on the disk."""
    step = job.progress.step
    job.answers.asked[step] = command
    save(job, "button")
    if job.checkpointer.is_saved(step) and job.answers.asked.pop(step, None) is not None:
        job.reporter.answer(command, step=step, accepted=True, message=f"Step {step} is already saved.")
