"""The training loop: read it from top to bottom, as in a DDP tutorial."""

from __future__ import annotations

import logging

import torch

from trainers.control import evaluate_unless_stopped, obey, obey_within_step, stay_paused
from trainers.engines.heartbeats import beats
from trainers.engines.heartbeats.heartbeat_board import COMPUTING, FETCHING, STEPPING
from trainers.job import Job, sample_now_and_then, save, save_and_wait

log = logging.getLogger(__name__)


def train(job: Job) -> str:
    """Train until the configured end or a stop; return why it ended, `finished` or `stopped`."""
    config, progress, strategy, meter, clock = job.config, job.progress, job.strategy, job.meter, job.clock
    strategy.model.train()

    while not job.has_ended():
        job.take_stood_still_s()  # what stood still between the epochs belongs to no step
        loss: torch.Tensor | None = None
        clock.begin_step(is_reported=meter.is_report_due())
        job.note_step_start()
        for batch in job.loader.epoch(progress.epoch, progress.samples_in_epoch):
            clock.data_fetched()
            beats.beat(COMPUTING)
            share_of_loss = job.objective.share(batch.targets, batch.weight)
            with strategy.gradient_sync(enabled=batch.is_last):  # DDP averages over the ranks meanwhile
                share = strategy.forward_backward(batch.inputs, share_of_loss, job.precision.loss_scale())
            loss = share if loss is None else loss + share
            clock.backward_done()
            beats.beat(STEPPING if batch.is_last else FETCHING)
            if not batch.is_last:  # gradients add up over several batches before a step
                if obey_within_step(job) == "stopped":
                    return "stopped"
                continue
            job.precision.unscale(job.optimizer)
            meter.note_gradients(gradient_norm(job))
            lr = job.rate.apply(job.optimizer, position(job), progress.learning_rate)
            job.precision.step(job.optimizer)
            job.optimizer.zero_grad()
            clock.optimizer_done()
            meter.settle()

            progress.step += 1
            progress.samples_in_epoch += batch.num_global
            clock.end_step()
            job.pulse.beat(progress.step, clock.newest)
            command = meter.step_done(
                loss,
                step=progress.step,
                epoch=progress.epoch,
                lr=lr,
                num_global=batch.num_global,
                step_time_s=clock.step_time_s,
                data_time_s=clock.data_time_s,
            )
            loss = None
            if _is_due(progress.step, config.eval_every_steps) and evaluate_unless_stopped(job) == "stopped":
                return "stopped"
            if _is_due(progress.step, config.checkpoint_every_steps):
                save(job, "schedule")
            if command is not None and obey(job, command) == "stopped":
                return "stopped"
            if job.has_ended():
                break
            sample_now_and_then(job)
            beats.beat(FETCHING)
            # A report belongs to the step after it; what stands still for good reason to none.
            clock.begin_step(is_reported=meter.is_report_due(), stood_still_s=job.take_stood_still_s())
            job.note_step_start()
        else:
            command = meter.report()
            if config.eval_every_steps is None and evaluate_unless_stopped(job) == "stopped":
                return "stopped"
            progress.epoch += 1
            progress.samples_in_epoch = 0
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
    if evaluate_unless_stopped(job) == "stopped":
        return "stopped"
    while not save_and_wait(job, "end"):
        # The work is done but not kept: better to wait for somebody than to lose it.
        if (
            stay_paused(job, "The last checkpoint could not be saved: free some space, then resume.")
            == "stopped"
        ):
            return "stopped"
    return "finished"


def gradient_norm(job: Job) -> torch.Tensor | None:
    """Clip the gradients where that is configured; return their norm on the steps that report it."""
    if job.config.max_grad_norm is not None:
        return job.strategy.clip_gradients(job.config.max_grad_norm)
    if job.meter.is_report_due() and (job.world.is_main or job.strategy.is_collective):
        return job.strategy.gradient_norm()
    return None


def position(job: Job) -> int:
    """Return where the schedule stands: the step, counted in global batches of today's size.

    It is `step` + 1, unless the run was resumed with another global batch: then what counts is the data
    seen, because epochs end the run. Where `max_steps` ends it, steps count, but for rates by the epoch.
    """
    if job.rate.is_over_by_steps and job.config.lr_schedule != "step":
        return job.progress.step + 1
    steps = -(-job.progress.samples_in_epoch // job.global_batch)
    return job.progress.epoch * job.rate.steps_per_epoch + steps + 1


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
