"""Counts steps and averages their losses over all ranks about ten times a second.

The same small all-reduce sends rank 0's command to all ranks. A command thus takes effect at the same step on
all ranks and needs no separate collective. Between reports, losses stay on the device.

On a GPU the host begins a report, launches the next step, and only then reads the report: so the GPU always
has work while its host waits. Every rank reads the report at the same step, so a command still takes effect
on all ranks at the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trainers.contract import commands, heartbeats
from trainers.contract.commands import Command
from trainers.contract.heartbeats import REPORTING
from trainers.parallel.process_group import World
from trainers.report.metrics import DeviceLosses, HostLosses
from trainers.report.reporter import NullReporter, StepBatch, StepNote

REPORT_EVERY_S = 0.1
MAX_STEPS_PER_REPORT = 512
AGREE_EVERY_S = 0.5
MAX_BATCHES_PER_AGREEMENT = 512
SAMPLE_EVERY_S = 10.0
SAMPLE_SHARE = 0.02  # samples take at most this share of the time
# The command, the number of steps until the next report, and whether a sample is due.
_NUM_EXTRAS = commands.NUM_SENT + 2
SLOTS = MAX_STEPS_PER_REPORT + _NUM_EXTRAS


class StepMeter:
    """Collects steps; `step_done` returns a command at the step at which it takes effect.

    Args:
        reads_late: read a report only after the next step has been launched; None: on GPUs only.
    """

    def __init__(self, world: World, reporter: NullReporter, *, reads_late: bool | None = None) -> None:
        self._world = world
        self._reporter = reporter
        self._is_async = world.device.type == "cuda"
        self._reads_late = self._is_async if reads_late is None else reads_late
        self._losses: DeviceLosses | HostLosses = (
            DeviceLosses(world.device, SLOTS) if self._reads_late else HostLosses()
        )
        self._steps: list[StepNote] = []
        self._step_loss: Tensor | None = None
        self._interval = 1
        self._grad_norm: Tensor | None = None
        self._unread: _Report | None = None
        self._agreed = _Agreement(interval=1)
        self._sampled_at = time.monotonic()
        self._sample_every_s = SAMPLE_EVERY_S
        self.is_sample_due = False
        self._evaluation_progress, self._step_progress = _Progress(), _Progress()

    def is_report_due(self) -> bool:
        """Return True if the current step ends with a report."""
        return len(self._steps) + 1 >= self._interval

    @property
    def reports_every_step(self) -> bool:
        """True if steps are so long that each is reported; the same on all ranks."""
        return self._interval == 1

    @property
    def has_unread_report(self) -> bool:
        """True if a report is pending that the current step will read."""
        return self._unread is not None

    def settle(self) -> None:
        """Read the report that the previous step began, after all work of this step has been launched.

        A GPU's host blocks here while the GPU works on the next step, so that step times include the GPU's
        time.
        """
        if self._unread is not None:
            self._read(self._unread)

    def note_gradients(self, norm: Tensor | None) -> None:
        """Store the gradients' norm; the last one is part of the next report."""
        if norm is not None:
            self._grad_norm = norm.detach()

    def note_sample(self, took_s: float) -> None:
        """Note that a sample was taken; slow samples are taken less often."""
        self._sample_every_s = max(SAMPLE_EVERY_S, took_s / SAMPLE_SHARE)
        self._sampled_at = time.monotonic()
        self.is_sample_due = False
        # The sample just taken also serves a request in the agreement or in the pending report.
        self._agreed = replace(self._agreed, is_sample_due=False)
        if self._unread is not None:
            self._unread.may_sample = False

    def add_loss(self, share: Tensor) -> None:
        """Add a micro-batch's share of the loss of the current step; it stays on its device.

        Args:
            share: this rank's share, as passed to backward: its mean over the ranks, summed over the
                micro-batches, is the loss of the step.
        """
        self._step_loss = share if self._step_loss is None else self._step_loss + share

    def step_done(
        self,
        *,
        step: int,
        epoch: int,
        lr: float,
        num_global: int,
        step_time_s: float,
        data_time_s: float,
    ) -> Command | None:
        """Note one optimizer step, and report if a report is due.

        Args:
            num_global: samples of all ranks in this step.
        """
        assert self._step_loss is not None, "a step has at least one micro-batch"
        self._losses.add(self._step_loss)
        self._step_loss = None
        self._steps.append((step, epoch, lr, num_global, step_time_s, data_time_s))
        if len(self._steps) >= self._interval:
            self._unread = self._begin()
        if not self._reads_late or self._agreed.command is not None:
            self.finish_report()  # before a command is obeyed, every step is reported
        return self._apply_agreement()

    def finish_report(self) -> None:
        """Read the pending report, if any, because no training step follows that would read it."""
        if self._unread is not None:
            self._read(self._unread, is_between_steps=True)

    def flush(self) -> None:
        """Report all steps without polling commands, so that no checkpoint is ahead of its curve."""
        self.finish_report()
        if self._steps:
            self._unread = self._begin(polls_command=False)
            self.finish_report()
        self._interval = self._agreed.interval
        self.is_sample_due = self.is_sample_due or self._agreed.is_sample_due

    def report(self) -> Command | None:
        """Average the losses since the last report over the ranks, and agree on a command. Every rank must
        call this at the same step. A paused run also calls it, to poll commands.
        """
        self.finish_report()
        self._unread = self._begin()
        self.finish_report()
        return self._apply_agreement()

    def should_interrupt(self) -> bool:
        """Return True, on all ranks alike, if the user requested a stop; communicates only now and then. Used
        in long work that consists of pieces, such as an evaluation: every rank must call this after each
        piece.
        """
        return self._agree_on_stop(self._evaluation_progress)

    def should_interrupt_step(self) -> bool:
        """Like `should_interrupt`, between the micro-batches of a step; a report counts as a call."""
        return self._agree_on_stop(self._step_progress)

    def _agree_on_stop(self, progress: _Progress) -> bool:
        progress.num_done += 1
        if progress.num_done < progress.agree_every:
            return False
        num_done = progress.num_done
        piece_s = progress.restart() / num_done
        message = torch.zeros(2, dtype=torch.float64, device=self._world.device)
        # All ranks must call the next agreement after the same number of pieces, so rank 0 chooses this
        # number: about `AGREE_EVERY_S` of work, but at most twice the previous number.
        if self._world.is_main:
            agree_every = max(
                1, min(MAX_BATCHES_PER_AGREEMENT, 2 * num_done, round(AGREE_EVERY_S / max(piece_s, 1e-6)))
            )
            message = torch.tensor([float(self._reporter.wants_stop()), agree_every], dtype=torch.float64).to(
                message.device
            )
        wants_stop, next_agree_every = self._world.sum(message).tolist()
        progress.agree_every = int(next_agree_every)
        return bool(wants_stop)

    def _begin(self, *, polls_command: bool = True) -> _Report:
        """Begin the all-reduce of the losses. Polls no command while an earlier one is pending."""
        assert self._unread is None, "one report at a time"
        heartbeats.write_heartbeat(REPORTING)
        command = self._reporter.poll_command() if polls_command and self._agreed.command is None else None
        extras = [0.0] * _NUM_EXTRAS
        if self._world.is_main:
            wants_sample = time.monotonic() - self._sampled_at > self._sample_every_s
            extras = [*commands.to_numbers(command), float(self._next_interval()), float(wants_sample)]
        # Layout: one loss per step, the command's numbers, the interval, whether a sample is due. Ranks other
        # than 0 contribute zeros after the losses, so the sum over the ranks holds rank 0's values there.
        message = self._world.sum(self._losses.pop_message(extras))
        report = _Report(
            steps=self._steps,
            command=command,
            has_norm=self._grad_norm is not None,
            numbers=self._losses.begin_copy_to_host(message, self._grad_norm),
        )
        self._steps = []
        self._grad_norm = None
        self._step_progress.restart()
        return report

    def _read(self, report: _Report, *, is_between_steps: bool = False) -> None:
        """Wait for a report, pass its losses to the reporter, and store what all ranks agreed on."""
        heartbeats.write_heartbeat(REPORTING)
        self._unread = None
        waiting_since = time.perf_counter()
        *values, norm = report.numbers()
        waited_s = time.perf_counter() - waiting_since if self._is_async and is_between_steps else 0.0
        num_steps = len(report.steps)
        *command_numbers, interval, sample_is_due = values[num_steps:]
        received = commands.from_numbers(command_numbers)
        # Rank 0 keeps its own Command object: only that object has the id.
        command = received and (report.command or received)
        self._agreed = _Agreement(
            interval=int(interval),
            command=command or self._agreed.command,
            is_sample_due=bool(sample_is_due) and report.may_sample,
        )
        if num_steps:
            # The writer thread turns the batch into events: that work must not slow down training.
            self._reporter.steps(
                StepBatch(
                    notes=report.steps,
                    losses=[value / self._world.world_size for value in values[:num_steps]],
                    grad_norm=norm if report.has_norm else None,
                    waited_s=waited_s,
                    is_async=self._is_async,
                )
            )

    def _apply_agreement(self) -> Command | None:
        """Apply the agreement: set the interval and the sample, and return the command."""
        agreed = self._agreed
        if agreed.command is not None or agreed.is_sample_due:
            self._agreed = _Agreement(interval=agreed.interval)
        self._interval, self.is_sample_due = agreed.interval, agreed.is_sample_due
        return agreed.command

    def _next_interval(self) -> int:
        """Choose the number of steps until the next report from the speed since the last one."""
        if not self._steps:
            return self._interval
        seconds_per_step = max(sum(step[4] for step in self._steps), 1e-6) / len(self._steps)
        return max(1, min(MAX_STEPS_PER_REPORT, round(REPORT_EVERY_S / seconds_per_step)))


@dataclass(kw_only=True)
class _Report:
    """A report in progress; `numbers` waits for it and returns losses, agreement and the gradients' norm."""

    steps: list[StepNote]
    command: Command | None
    has_norm: bool
    numbers: Callable[[], list[float]]
    may_sample: bool = True


@dataclass
class _Progress:
    """Progress of long work: pieces done since the ranks last agreed, and pieces between two agreements."""

    num_done: int = 0
    agree_every: int = 1
    agreed_at: float = field(default_factory=time.monotonic)

    def restart(self) -> float:
        """Restart the count; return the seconds since the last restart."""
        now = time.monotonic()
        took_s, self.agreed_at, self.num_done = now - self.agreed_at, now, 0
        return took_s


@dataclass(frozen=True, kw_only=True)
class _Agreement:
    """Values that all ranks have read from the same report."""

    interval: int
    command: Command | None = None
    is_sample_due: bool = False
