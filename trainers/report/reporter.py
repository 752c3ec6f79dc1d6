"""Rank 0's event queue and incoming commands; the other ranks have a null reporter.

The training thread only puts events on the queue; a writer thread appends them in batches. If the queue is
full, step events are dropped and a warning reports their number; all other kinds are never dropped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainers.contract.commands import Command, Incoming, arguments_of
from trainers.contract.events import EventFile, State
from trainers.contract.fence import SupersededError
from trainers.contract.rundir import RunDirectory
from trainers.machine.environment import now_unix_s
from trainers.machine.os_errors import explain

log = logging.getLogger(__name__)

MAX_QUEUED_STEPS = 50_000
WRITE_EVERY_S = 0.02
RETRY_EVERY_S = 0.5
GIVE_UP_AFTER_S = 30.0

# Step, epoch, learning rate, samples of all ranks, seconds of the step, seconds of it spent on data.
StepNote = tuple[int, int, float, int, float, float]

_Item = tuple[float, str, Mapping[str, Any]]
_Queued = tuple[float, str, "Mapping[str, Any] | StepBatch"]


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The steps of one report as the training thread collected them, oldest first.

    Attributes:
        losses: mean over all ranks, one per step.
        grad_norm: gradient norm of the last step.
        waited_s: seconds that the report waited for the device to finish these steps.
        is_async: the host only launches work, so only the mean time of these steps is known.
    """

    notes: Sequence[StepNote]
    losses: Sequence[float]
    grad_norm: float | None = None
    waited_s: float = 0.0
    is_async: bool = False

    def newest(self) -> StepBatch:
        """Return a batch of the last step alone."""
        return replace(self, notes=self.notes[-1:], losses=self.losses[-1:])

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield the fields of each step's event."""
        seconds = sum(note[4] for note in self.notes) + self.waited_s
        mean_step_time_s = seconds / len(self.notes)
        samples_per_s = round(sum(note[3] for note in self.notes) / max(seconds, 1e-9), 2)
        last = len(self.notes) - 1
        for position, (note, loss) in enumerate(zip(self.notes, self.losses, strict=True)):
            step, epoch, lr, _, step_time_s, data_time_s = note
            yield {
                "step": step,
                "epoch": epoch,
                "loss": loss,
                "lr": lr,
                "grad_norm": self.grad_norm if position == last else None,
                "samples_per_s": samples_per_s,
                "step_time_s": round(mean_step_time_s if self.is_async else step_time_s, 6),
                "data_time_s": round(data_time_s, 6),
            }


class NullReporter:
    """The reporter of all ranks except 0: reports nothing and receives no commands."""

    def state(self, state: State, reason: str) -> None:
        """Report that the run is in a new state."""

    def event(self, kind: str, **fields: Any) -> None:
        """Report one event, which is never dropped."""

    def steps(self, batch: StepBatch) -> None:
        """Report one or more optimizer steps."""

    def warning(self, code: str, message: str, hint: str) -> None:
        """Report a problem that the user should know about."""

    def poll_command(self) -> Command | None:
        """Return the oldest pending command, or None."""
        return None

    def wants_stop(self) -> bool:
        """Return True if a stop is among the pending commands."""
        return False

    def answer(self, command: Command, *, step: int, accepted: bool, message: str) -> None:
        """Report the result of a command."""

    def close(self) -> None:
        """Write all queued events and close the file."""


class Reporter(NullReporter):
    """Rank 0's reporter: puts events on a queue; a thread appends them to `events.jsonl`."""

    def __init__(self, run: RunDirectory, commands_offset: int | None = None) -> None:
        self._file = EventFile(run.events)
        # Commands sent to an earlier start of this run do not apply to this one.
        self._incoming = Incoming(run.commands, commands_offset)
        self._commands: deque[Command] = deque()
        self._queue: deque[_Queued] = deque()
        self._num_queued_steps = 0
        self._num_dropped_steps = 0
        self._wake = threading.Condition()
        self._is_closing = False
        self.writer = threading.Thread(target=self._write_until_closed, name="event-writer", daemon=True)
        self.writer.start()

    def state(self, state: State, reason: str) -> None:
        self.event("state", state=state, reason=reason)

    def event(self, kind: str, **fields: Any) -> None:
        with self._wake:
            self._queue.append((now_unix_s(), kind, fields))
            self._wake.notify()

    def steps(self, batch: StepBatch) -> None:
        now, count = now_unix_s(), len(batch.notes)
        with self._wake:
            num_free = MAX_QUEUED_STEPS - self._num_queued_steps
            num_queued = count if num_free >= count else min(1, max(0, num_free))
            self._num_dropped_steps += count - num_queued
            self._num_queued_steps += num_queued
            if num_queued:
                self._queue.append((now, "step", batch if num_queued == count else batch.newest()))
            self._wake.notify()

    def warning(self, code: str, message: str, hint: str) -> None:
        self.event("warning", code=code, message=message, hint=hint, rank=None, traceback=None)

    def poll_command(self) -> Command | None:
        self._read_new_commands()
        return self._commands.popleft() if self._commands else None

    def wants_stop(self) -> bool:
        self._read_new_commands()
        return any(command.name == "stop" for command in self._commands)

    def answer(self, command: Command, *, step: int, accepted: bool, message: str) -> None:
        self.event(
            "command",
            id=command.id,
            name=command.name,
            step=step,
            accepted=accepted,
            message=message,
            arguments=arguments_of(command),
        )

    def close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self.writer.join()
        self._file.close()

    def _read_new_commands(self) -> None:
        for received in self._incoming.read():
            if isinstance(received, Command):
                self._commands.append(received)
                continue
            self.warning("command_unreadable", received.message, received.hint)
            if received.id:  # the sender waits for an answer
                answer = {"step": 0, "accepted": False, "message": received.message, "arguments": None}
                self.event("command", id=received.id, name=received.name, **answer)

    def _write_until_closed(self) -> None:
        failing_since: float | None = None
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    return
                queued = list(self._queue)
                self._queue.clear()
                self._num_queued_steps = 0
                num_dropped, self._num_dropped_steps = self._num_dropped_steps, 0
            batch = list(_expand_batches(queued))
            if num_dropped:
                batch.append((now_unix_s(), "warning", _dropped_steps_warning(num_dropped)))
            try:
                num_written = self._file.append(batch)
                if num_written < len(batch):
                    self._requeue(batch[num_written:])
                failing_since = None
            except SupersededError as error:
                log.warning("this rank ends: %s", error)
                # at once: a rank of an earlier start of this run must not write to the run's files
                os._exit(1)
            except OSError as error:
                failing_since = failing_since or time.monotonic()
                self._requeue(batch)
                log.warning("events could not be written, trying again: %s", explain(error))
                if self._is_closing and time.monotonic() - failing_since > GIVE_UP_AFTER_S:
                    raise
                time.sleep(RETRY_EVERY_S)
            else:
                # This sleep only lets events accumulate, so that a fast loop needs few writes.
                time.sleep(0.0 if self._is_closing else WRITE_EVERY_S)

    def _requeue(self, batch: Sequence[_Item]) -> None:
        with self._wake:
            self._queue.extendleft(reversed(batch))
            self._num_queued_steps = sum(1 for _, kind, _ in self._queue if kind == "step")


def _expand_batches(queued: Sequence[_Queued]) -> Iterator[_Item]:
    for time_unix_s, kind, content in queued:
        if isinstance(content, StepBatch):
            for fields in content.events():
                yield time_unix_s, kind, fields
        else:
            yield time_unix_s, kind, content


def _dropped_steps_warning(count: int) -> dict[str, Any]:
    return {
        "code": "steps_thinned",
        "message": f"{count} step events were dropped because they came faster than they could be written.",
        "hint": "Training is not affected; the curve has fewer points for this time.",
        "rank": None,
        "traceback": None,
    }


def create(run: RunDirectory, *, is_main: bool, commands_offset: int | None = None) -> NullReporter:
    """Return rank 0's reporter or a null reporter; with offset None, only commands sent from now on count."""
    return Reporter(run, commands_offset) if is_main else NullReporter()
