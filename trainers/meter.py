"""Counts steps and, about ten times a second, averages their losses over all ranks.

The same small all-reduce carries rank 0's command to everyone, so that a command takes effect at a step
all ranks agree on and costs no collective of its own. Losses stay on the device until then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainers import heartbeat
from trainers.contract.heartbeats import REPORTING
from trainers.contract.rundir import COMMAND_NAMES
from trainers.distributed import World
from trainers.reporter import Command, NullReporter, StepBatch, StepNote

REPORT_EVERY_S = 0.1
MAX_STEPS_PER_REPORT = 512
AGREE_EVERY_S = 0.5
MAX_BATCHES_PER_AGREEMENT = 512
SAMPLE_EVERY_S = 10.0
SAMPLE_SHARE = 0.02  # samples take at most this part of the time
_NUM_EXTRAS = 5


class StepMeter:
    """Collects steps; `step_done` returns a command at the step it takes effect."""

    def __init__(self, world: World, reporter: NullReporter) -> None:
        self._world = world
        self._reporter = reporter
        self._is_async = world.device.type == "cuda"
        self._losses: _DeviceLosses | _HostLosses = (
            _DeviceLosses(world.device) if self._is_async else _HostLosses()
        )
        self._steps: list[StepNote] = []
        self._interval = 1
        self._grad_norm: Tensor | None = None
        self._sampled_at = time.monotonic()
        self._sample_every_s = SAMPLE_EVERY_S
        self.is_sample_due = False
        self._in_evaluation, self._in_step = _Pieces(), _Pieces()

    def is_report_due(self) -> bool:
        """Tell whether the step under way ends with a report."""
        return len(self._steps) + 1 >= self._interval

    @property
    def reports_every_step(self) -> bool:
        """Whether steps are so long that each is reported; all ranks say the same."""
        return self._interval == 1

    def settle(self) -> None:
        """On the step of a report wait for the GPU, so that the time of its work falls into these steps.

        The report itself would wait a moment later; on the CPU there is nothing to wait for.
        """
        if self._is_async and self.is_report_due():
            torch.cuda.synchronize(self._world.device)

    def note_gradients(self, norm: Tensor | None) -> None:
        """Take the gradients' norm; the newest one goes with the next report."""
        if norm is not None:
            self._grad_norm = norm.detach()

    def note_sample(self, took_s: float) -> None:
        """Note that the model was just asked for a sample; a slow one is not asked for again soon."""
        self._sample_every_s = max(SAMPLE_EVERY_S, took_s / SAMPLE_SHARE)
        self._sampled_at = time.monotonic()
        self.is_sample_due = False

    def step_done(
        self,
        loss: Tensor,
        *,
        step: int,
        epoch: int,
        lr: float,
        num_global: int,
        step_time_s: float,
        data_time_s: float,
    ) -> Command | None:
        """Note one optimizer step; report when it is time.

        Args:
            loss: this rank's loss as given to backward (scaled such that the ranks' mean is the loss).
            num_global: samples of all ranks in this step.
        """
        self._losses.add(loss)
        self._steps.append((step, epoch, lr, num_global, step_time_s, data_time_s))
        self.is_sample_due = False
        return self.report() if len(self._steps) >= self._interval else None

    def flush(self) -> None:
        """Report the steps so far without hearing commands: a checkpoint is never ahead of its curve."""
        if self._steps:
            self._reduce(None)

    def report(self) -> Command | None:
        """Average the losses since the last report over the ranks, and agree on a command.

        Every rank must call it at the same step. Also the way to hear commands while paused.
        """
        return self._reduce(self._reporter.poll_command())

    def should_break_off(self) -> bool:
        """Tell all ranks alike, now and then, whether somebody wants the run to stop.

        For long work in pieces, an evaluation say: every rank calls it after each piece, and as often.
        """
        return self._agree_on_a_stop(self._in_evaluation)

    def should_leave_step(self) -> bool:
        """Tell the same between the micro-batches of a step; a report is such an agreement, too."""
        return self._agree_on_a_stop(self._in_step)

    def _agree_on_a_stop(self, pieces: _Pieces) -> bool:
        pieces.num_done += 1
        if pieces.num_done < pieces.agree_every:
            return False
        num_done = pieces.num_done
        took_s = pieces.begin_anew() / num_done
        message = torch.zeros(2, dtype=torch.float64, device=self._world.device)
        if self._world.is_main:
            every = max(
                1, min(MAX_BATCHES_PER_AGREEMENT, 2 * num_done, round(AGREE_EVERY_S / max(took_s, 1e-6)))
            )
            message = torch.tensor([float(self._reporter.wants_stop()), every], dtype=torch.float64).to(
                message.device
            )
        wants_stop, every_batches = self._world.sum(message).tolist()
        pieces.agree_every = int(every_batches)
        return bool(wants_stop)

    def _reduce(self, command: Command | None) -> Command | None:
        heartbeat.beat(REPORTING)
        count = len(self._steps)
        extras = [0.0] * _NUM_EXTRAS
        if self._world.is_main:
            wants_sample = time.monotonic() - self._sampled_at > self._sample_every_s
            extras = [*_encode(command, self._next_interval()), float(wants_sample)]
        message = self._losses.taken_with(extras)
        waiting_since = time.perf_counter()
        values = self._world.sum(message).tolist()
        waited_s = time.perf_counter() - waiting_since if self._is_async else 0.0
        *decision, sample_is_due = values[count:]
        agreed, self._interval = _decode(decision, command)
        self.is_sample_due = bool(sample_is_due)
        if count:
            self._emit([value / self._world.world_size for value in values[:count]], waited_s)
        self._in_step.begin_anew()
        return agreed

    def _emit(self, losses: list[float], waited_s: float) -> None:
        norm = None if self._grad_norm is None else float(self._grad_norm)
        # Whoever writes makes events of them: that is not training's work.
        self._reporter.steps(
            StepBatch(
                notes=self._steps, losses=losses, grad_norm=norm, waited_s=waited_s, is_async=self._is_async
            )
        )
        self._steps = []
        self._grad_norm = None

    def _next_interval(self) -> int:
        """Choose the steps until the next report from the speed since the last one."""
        if not self._steps:
            return self._interval
        seconds_per_step = max(sum(step[4] for step in self._steps), 1e-6) / len(self._steps)
        return max(1, min(MAX_STEPS_PER_REPORT, round(REPORT_EVERY_S / seconds_per_step)))


@dataclass
class _Pieces:
    """Long work in pieces: how many were done since all ranks agreed, and after how many they do again."""

    num_done: int = 0
    agree_every: int = 1
    agreed_at: float = field(default_factory=time.monotonic)

    def begin_anew(self) -> float:
        """Count from now on; return the seconds since it was counted from."""
        now = time.monotonic()
        took_s, self.agreed_at, self.num_done = now - self.agreed_at, now, 0
        return took_s


class _HostLosses:
    """Losses of steps as numbers: on the CPU they are there, and there is nothing to wait for."""

    def __init__(self) -> None:
        self._values: list[float] = []

    def add(self, loss: Tensor) -> None:
        """Note a step's loss."""
        self._values.append(loss.item())

    def taken_with(self, extras: Sequence[float]) -> Tensor:
        """Return the losses and these numbers in one float64 tensor, and begin anew."""
        taken, self._values = self._values, []
        return torch.tensor([*taken, *extras], dtype=torch.float64)


class _DeviceLosses:
    """Losses of steps on their device: asking for a number would make the host wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.zeros(MAX_STEPS_PER_REPORT + _NUM_EXTRAS, dtype=torch.float64, device=device)
        self._count = 0

    def add(self, loss: Tensor) -> None:
        """Note a step's loss."""
        self._buffer[self._count].copy_(loss)
        self._count += 1

    def taken_with(self, extras: Sequence[float]) -> Tensor:
        """Return the losses and these numbers in one float64 tensor, and begin anew."""
        message = self._buffer[: self._count + len(extras)]
        message[self._count :] = torch.tensor(extras, dtype=torch.float64)
        self._count = 0
        return message


def _encode(command: Command | None, interval: int) -> list[float]:
    if command is None:
        return [0.0, 0.0, 0.0, float(interval)]
    number = 1 + COMMAND_NAMES.index(command.name)
    return [float(number), float(command.save), command.learning_rate, float(interval)]


def _decode(extras: list[float], own: Command | None) -> tuple[Command | None, int]:
    """Return the command all ranks agree on (rank 0 keeps its own, with the id) and the interval."""
    number, save, learning_rate, interval = extras
    if number == 0:
        return None, int(interval)
    name = COMMAND_NAMES[int(number) - 1]
    return own or Command(name=name, save=bool(save), learning_rate=learning_rate), int(interval)
