"""One rank's `Job`, and its work between steps: evaluate, sample, save."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from trainers import registry
from trainers.checkpoint.checkpoint_writer import Outcome
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.snapshot import Progress, StepStart
from trainers.contract import heartbeats
from trainers.contract.checkpoint_files import CheckpointError, NoSpaceError, PeersGoneError
from trainers.contract.commands import Command
from trainers.contract.config import Config
from trainers.contract.heartbeats import EVALUATING, SAMPLING, SAVING
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataSpec, Split
from trainers.data.loading import Batch, Loader
from trainers.evaluation import Evaluator, evaluation_batch
from trainers.optimisation import compiling
from trainers.optimisation.objective import Objective
from trainers.optimisation.optimizers import LearningRate
from trainers.parallel.precision import Precision
from trainers.parallel.process_group import World
from trainers.parallel.strategy import Strategy
from trainers.report.metrics import Trivial
from trainers.report.observer import NullFingerprints, NullObserver
from trainers.report.reporter import NullReporter
from trainers.report.step_meter import StepMeter

log = logging.getLogger(__name__)

# Rank 0 samples alone while all other ranks wait in the next step's all-reduce, which has a timeout.
SAMPLE_TIME_LIMIT_S = 5.0
WARN_EVERY_S = 60.0
MAX_CLASS_NAME_CHARS = 40


@dataclass(kw_only=True)
class Job:
    """One rank's part of a run.

    Attributes:
        num_shards: number of replicas that each epoch's samples are distributed over.
        trivial: metrics of a predictor that ignores its input; only on rank 0, which writes the `plan` event.
        lineage: where the first weights came from, if not from the seed; see `checkpoint.start_from_run`.
        slowed: handle of the hook that makes this rank sleep in each step, or None.
    """

    run: RunDirectory
    config: Config
    world: World
    spec: DataSpec
    validation: Split
    loader: Loader
    strategy: Strategy
    objective: Objective
    evaluator: Evaluator
    optimizer: torch.optim.Optimizer
    rate: LearningRate
    precision: Precision
    reporter: NullReporter
    meter: StepMeter
    observer: NullObserver
    fingerprints: NullFingerprints
    progress: Progress
    checkpointer: Checkpointer
    num_train: int
    num_parameters: int
    num_trained: int
    num_shards: int
    global_batch: int
    answers: SaveAnswers
    step_start: StepStart
    trivial: Trivial | None = None
    lineage: dict[str, Any] | None = None
    slowed: RemovableHandle | None = None

    def plan(self) -> dict[str, Any]:
        """Return the `plan` event: the length of the run, from the loaded data and the built model."""
        progress = self.progress
        return {
            "num_train": self.num_train,
            "num_validation": len(self.validation),
            "num_parameters": self.num_parameters,
            "num_trained": self.num_trained,
            "global_batch": self.global_batch,
            "steps_per_epoch": self.rate.steps_per_epoch,
            "num_steps": self.config.num_steps(
                self.num_train,
                self.num_shards,
                step=progress.step,
                epoch=progress.epoch,
                samples_in_epoch=progress.samples_in_epoch,
            ),
            "class_names": self._class_names(),
            "all_reduce": self.strategy.all_reduce,
            "dealing": {
                "step": progress.step,
                "epoch": progress.epoch,
                "samples_in_epoch": progress.samples_in_epoch,
                "batch_size": self.config.batch_size,
                "num_accumulated": self.config.gradient_accumulation_steps,
                "num_replicas": self.strategy.num_replicas,
            },
            "trivial": None if self.trivial is None else asdict(self.trivial),
            "start": self.lineage,
        }

    def _class_names(self) -> list[str] | None:
        """Return the class names of the confusion matrix, or None if the task has none."""
        names = registry.task(self.spec.task).class_names(self.spec)
        return None if names is None else [name[:MAX_CLASS_NAME_CHARS] for name in names]

    def begin_step(self, *, is_first_of_epoch: bool = False) -> None:
        """Begin a step, which includes fetching its first batch.

        A long step of several micro-batches can be abandoned halfway: `step_start` notes the state to
        return to. The first step of a run cannot be abandoned: no earlier step could be saved.
        """
        self.observer.begin_step(is_reported=self.is_step_reported(), is_first_of_epoch=is_first_of_epoch)
        if self.config.gradient_accumulation_steps == 1:
            return
        if self.meter.reports_every_step and self.progress.step > 0:
            self.step_start.store()
        else:
            self.step_start.forget()

    def is_step_reported(self) -> bool:
        """True, on all ranks alike, if the current step is reported: a report is due or the epoch ends."""
        ends_epoch = self.progress.samples_in_epoch + self.global_batch >= self.num_train
        return ends_epoch or self.meter.is_report_due()

    def end_step(self, batch: Batch, lr: float) -> Command | None:
        """Count a completed step; return the command that all ranks carry out now, if any."""
        progress, observer = self.progress, self.observer
        # Read the previous step's report only now: the host then waits for the GPU while this step's kernels
        # are already queued.
        self.meter.settle()
        progress.step += 1
        progress.samples_in_epoch += batch.num_global
        observer.end_step(progress.step)
        command = self.meter.step_done(
            step=progress.step,
            epoch=progress.epoch,
            lr=lr,
            num_global=batch.num_global,
            step_time_s=observer.step_time_s,
            data_time_s=observer.data_time_s,
        )
        with observer.exclude_time():
            self.fingerprints.after_step(progress.step)
        return command

    @property
    def has_reached_max_steps(self) -> bool:
        return self.config.max_steps is not None and self.progress.step >= self.config.max_steps

    @property
    def has_stopped_improving(self) -> bool:
        patience = self.config.early_stopping_patience
        return patience is not None and self.progress.num_evaluations_without_best >= patience

    def early_stopping_status(self) -> str:
        """Describe early stopping: its metric, the best value and the number of evaluations since."""
        metric = registry.task(self.spec.task).first_metric
        progress, patience = self.progress, self.config.early_stopping_patience
        counted = f"{progress.num_evaluations_without_best} of {patience} evaluations without a better one"
        if progress.best_value is None or progress.best_step is None:
            return f"validation {metric} was NaN or infinite in every evaluation, {counted}"
        best = f"best validation {metric} {progress.best_value:.4g} at step {progress.best_step:,}"
        return f"{best}, {counted}"

    def has_ended(self) -> bool:
        """True if training is over: last epoch, `max_steps` or early stopping."""
        progress = self.progress
        return (
            progress.epoch >= self.config.num_epochs
            or self.has_reached_max_steps
            or self.has_stopped_improving
        )


@dataclass
class SaveAnswers:
    """Reports the outcome of each save, from the thread that wrote it, and answers the save command."""

    reporter: NullReporter
    save_commands: dict[int, Command] = field(default_factory=dict)
    # Limits warnings: a run that saves at every step would otherwise fill the disk with them.
    _warned_at: float | None = None

    def __call__(self, outcome: Outcome) -> None:
        """Report one outcome. Called on every rank; only rank 0's reporter writes."""
        if isinstance(outcome, CheckpointError):
            hint = save_failure_hint(outcome)
            now = time.monotonic()
            if self._warned_at is None or now - self._warned_at > WARN_EVERY_S or self.save_commands:
                self._warned_at = now
                self.reporter.warning("checkpoint_failed", f"A checkpoint was not saved: {outcome}", hint)
            for step, waiting in list(self.save_commands.items()):
                message = f"Could not save step {step:,}: {outcome}"
                self.reporter.answer(waiting, step=step, accepted=False, message=message)
            self.save_commands.clear()
            return
        self._warned_at = None
        log.info("checkpoint of step %d saved (%s), %.2f s", outcome.step, outcome.reason, outcome.duration_s)
        self.reporter.event(
            "checkpoint",
            step=outcome.step,
            path=f"checkpoints/{outcome.path.name}",
            size_bytes=outcome.size_bytes,
            duration_s=round(outcome.duration_s, 4),
            stall_s=round(outcome.stall_s, 4),
            reason=outcome.reason,
            removed=list(outcome.removed),
        )
        command = self.save_commands.pop(outcome.step, None)
        if command is not None:
            message = f"Saved at step {outcome.step:,}."
            self.reporter.answer(command, step=outcome.step, accepted=True, message=message)


def save_failure_hint(error: CheckpointError) -> str:
    """Return advice after a failed save: free space if the disk is full."""
    if isinstance(error, PeersGoneError):
        return "Earlier checkpoints are kept. No write to disk failed."
    if isinstance(error, NoSpaceError):
        return "The run continues. Free some space, then save again."
    return "The run continues. Save again when the cause is fixed."


def evaluate(job: Job) -> bool:
    """Compute loss and metrics over the validation split, keep the best checkpoint, and take a sample.

    Returns:
        False, on all ranks alike, if it was interrupted because a stop was requested.
    """
    progress = job.progress
    if progress.evaluated_step == progress.step:
        return True
    with job.observer.exclude_time():
        job.meter.finish_report()
        heartbeats.write_heartbeat(EVALUATING)
        evaluation = job.evaluator.evaluate(
            job.validation,
            batch_size=evaluation_batch(job.spec, job.config.batch_size),
            should_interrupt=job.meter.should_interrupt,
        )
        if evaluation is None:
            return False
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.metrics.items())
        log.info("validation at step %d: loss %.4f, %s", progress.step, evaluation.loss, metrics)
        job.reporter.event("eval", step=progress.step, epoch=progress.epoch, **vars(evaluation))
        is_best = progress.note_evaluation(evaluation.metrics)
        if job.config.early_stopping_patience is not None:
            log.info("early stopping: %s", job.early_stopping_status())
        take_sample(job)
    if is_best and job.config.keep_best_checkpoint:
        save(job, "best")
    return True


def sample_if_due(job: Job) -> None:
    """Take a sample if enough time has passed since the previous one: an epoch can take hours."""
    if job.meter.is_sample_due:
        with job.observer.exclude_time():
            take_sample(job)


@torch.no_grad()
def take_sample(job: Job) -> None:
    """Report a sample of the model's output: from rank 0 alone if it holds all weights, else from all ranks.

    The model runs uncompiled: the other ranks wait in a collective, and compiling could exceed its timeout.
    """
    started_at = time.perf_counter()
    heartbeats.write_heartbeat(SAMPLING)
    if not (job.world.is_main or job.strategy.is_collective):
        job.meter.note_sample(0.0)
        return
    network = job.strategy.network
    network.eval()
    try:
        with compiling.disable_compilation(job.config):
            sample = registry.task(job.spec.task).sample(
                job.strategy.scores,
                job.spec,
                job.validation,
                device=job.world.device,
                seed=job.config.seed,
                time_limit_s=None if job.strategy.is_collective else SAMPLE_TIME_LIMIT_S,
            )
    except (RuntimeError, ValueError, LookupError) as error:
        # A sample is for display only and must not end a run.
        job.reporter.warning("no_sample", f"No sample could be taken: {error}", "Training is not affected.")
        return
    finally:
        network.train()
        job.meter.note_sample(time.perf_counter() - started_at)
    if sample is not None:
        kind, content = sample
        job.reporter.event("sample", step=job.progress.step, type=kind, content=content)


def save(job: Job, reason: str) -> None:
    """Save a checkpoint of this step; training waits only while the state is copied."""
    with job.observer.exclude_time():
        job.meter.flush()
        heartbeats.write_heartbeat(SAVING)
        job.checkpointer.save(job.progress, reason)


def save_and_wait(job: Job, reason: str) -> bool:
    """Save a checkpoint and wait; return True if it is on disk. A failed save does not raise."""
    with job.observer.exclude_time():
        save(job, reason)
        job.checkpointer.wait()
    return job.checkpointer.is_saved(job.progress.step)
