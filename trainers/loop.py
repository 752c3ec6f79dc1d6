"""The training loop: read it from top to bottom, as in a DDP tutorial."""

from __future__ import annotations

import logging

from torch import Tensor
from torch.optim import Optimizer

from trainers.control import check_for_stop, evaluate_unless_stopped, execute, finish
from trainers.job import Job, sample_if_due, save

log = logging.getLogger(__name__)


def train(job: Job) -> None:
    """Train until the configured end; every rank calls it.

    Raises:
        Stopped: if a stop was requested; all ranks raise it after the same step.
    """
    config, progress, precision = job.config, job.progress, job.precision
    autocast = precision.autocast()  # created once, entered in each step
    strategy, loader, optimizer = job.strategy, job.loader, job.optimizer
    strategy.model.train()  # with DDP: the wrapped model
    compute_loss = strategy.loss_function(job.objective)  # criterion(model(inputs), targets) * weight

    while not job.has_ended():
        job.begin_step(is_first_of_epoch=True)
        loader.set_epoch(progress.epoch)  # reshuffles, with the same order on all ranks
        for batch in loader.starting_at(progress.samples_in_epoch):
            job.observer.data_fetched()
            # DDP's no_sync() until the last micro-batch: only its backward averages gradients across ranks.
            with strategy.gradient_sync(enabled=batch.is_last):
                with autocast:
                    loss = compute_loss(batch.inputs, batch.targets, batch.weight)
                job.observer.forward_done()
                loss.backward(precision.loss_scale())  # starts from 1; fp16 from the loss scale
            job.meter.add_loss(loss.detach())
            job.observer.backward_done(is_last=batch.is_last)
            if not batch.is_last:  # gradients accumulate over the micro-batches of a step
                check_for_stop(job)
                continue
            precision.unscale(optimizer)
            job.meter.note_gradients(clip_gradients(job))
            lr = job.rate.apply(optimizer, progress)
            precision.step(optimizer)  # optimizer.step(); fp16 skips it if a gradient is not finite
            clear_gradients(optimizer)  # optimizer.zero_grad()
            job.observer.optimizer_done()

            command = job.end_step(batch, lr)  # all ranks agree on it at the same step
            # Evaluate and save before the command, which may raise `Stopped` and so end the loop.
            if _is_due(progress.step, config.eval_every_steps):
                evaluate_unless_stopped(job)
            if _is_due(progress.step, config.checkpoint_every_steps):
                save(job, "schedule")
            if command is not None:
                execute(job, command)
            if job.has_ended():
                break
            sample_if_due(job)
            job.begin_step()
        else:  # no break: every batch of the epoch was used
            command = job.meter.report()
            if config.eval_every_steps is None:
                evaluate_unless_stopped(job)
            progress.epoch += 1
            progress.samples_in_epoch = 0
            log.info("epoch %d of %d done at step %d", progress.epoch, config.num_epochs, progress.step)
            if config.checkpoint_every_steps is None:
                save(job, "schedule")
            if command is not None:
                execute(job, command)
    finish(job)


def clip_gradients(job: Job) -> Tensor | None:
    """Clip the gradients if configured; return their norm, or None in steps that do not report it."""
    if job.config.max_grad_norm is not None:
        return job.strategy.clip_gradients(job.config.max_grad_norm)
    if job.is_step_reported() and (job.world.is_main or job.strategy.is_collective):
        return job.strategy.gradient_norm()
    return None


def clear_gradients(optimizer: Optimizer) -> None:
    """Set all gradients to None: `optimizer.zero_grad()` without its range for profilers.

    The profiler range costs 25 µs of host time per step, which delays a small model on a GPU.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _is_due(step: int, interval: int | None) -> bool:
    return interval is not None and step % interval == 0
