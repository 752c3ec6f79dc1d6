"""The processes that answer for trained models: started on request, one or two per user, short-lived.

`trainers.predict.server` describes the other side. The page has no torch, so it only passes JSON on.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator

import orjson

from ddp_gui.background.torch_template import START_S, Answer, Fork, TemplateError, TorchTemplate

# Loading a model and its data, and one answer.
ANSWER_S = 30.0
MOST_PER_PERSON = 2
MOST_PROCESSES = 8
# As in `trainers.predict.server`, which reads no longer line.
MAX_QUESTION = 2**20


class ModelError(ValueError):
    """A model cannot answer; the message says why, and what to do."""


def _line_of(question: Answer) -> bytes:
    """Return a question as it is sent.

    Raises:
        ModelError: if it is too long, or has a number or a character that JSON cannot hold.
    """
    try:
        line = orjson.dumps(question)
    except TypeError as error:
        raise ModelError(f"this input cannot be sent to the model: {error}") from error
    if len(line) >= MAX_QUESTION:
        raise ModelError(f"this input has {len(line):,} bytes, but allowed are: {MAX_QUESTION:,}")
    return line + b"\n"


class _Process(Fork):
    """One process of a user."""

    def __init__(self, connected: socket.socket, control: socket.socket) -> None:
        super().__init__(connected, control)
        self.is_busy = True
        self.used_at = time.monotonic()


class ModelProcesses:
    """All processes of the page; thread-safe.

    Args:
        template: forks them; ends with them.
        keeps_ready: True if the template may be started before somebody asks.
    """

    def __init__(self, template: TorchTemplate, *, keeps_ready: bool = True) -> None:
        self._template = template
        self._keeps_ready = keeps_ready
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._processes: dict[str, list[_Process]] = {}
        # Processes that are being started, by user.
        self._num_begun: Counter[str] = Counter()

    def get_ready(self) -> None:
        """Start the template, because a user may soon ask; does nothing without enough free memory."""
        if self._keeps_ready:
            self._template.get_ready()

    def ask(self, person: str, question: Answer) -> Answer:
        """Return the answer to a question.

        Raises:
            ModelError: if the model refuses, or the process ended or took too long.
        """
        return list(self.stream(person, question))[-1]

    def stream(self, person: str, question: Answer) -> Iterator[Answer]:
        """Yield the answers to a question; if the iterator is closed early, the process stops computing.

        Raises:
            ModelError: if the model refuses, or the process ended or took too long.
        """
        line = _line_of(question)
        process = self._take(person)
        is_good = False
        try:
            process.send(line)
            while True:
                answer = process.receive(time.monotonic() + ANSWER_S)
                if "error" in answer:
                    is_good = True
                    raise ModelError(answer["error"])
                if answer.pop("end", False):
                    is_good = True
                    yield answer
                    return
                yield answer
        except GeneratorExit:
            is_good = self._stop(process)
            raise
        except TimeoutError:
            message = f"the model did not answer within {ANSWER_S:.0f} s, so its process was ended: try again"
            raise ModelError(message) from None
        except OSError:
            raise ModelError(
                "the process that runs the model was ended (by a user, or because the memory ran out): try "
                "again"
            ) from None
        finally:
            self._give_back(person, process, is_good=is_good)

    def close(self) -> None:
        """End all processes, when the page ends."""
        with self._lock:
            for process in [each for some in self._processes.values() for each in some]:
                process.close()
            self._processes.clear()
        self._template.close()

    def _stop(self, process: _Process) -> bool:
        """Make a process stop after the token that it computes; return True if it did."""
        try:
            process.send(_line_of({"do": "stop"}))
            until = time.monotonic() + ANSWER_S
            while not process.receive(until).get("end"):
                pass
        except OSError:  # a timeout is one, too
            return False
        return True

    def _take(self, person: str) -> _Process:
        """Return an idle process of this user, or a new one; wait while the user's are all busy."""
        with self._changed:
            ends_at = time.monotonic() + ANSWER_S + (START_S if self._num_begun[person] else 0.0)
            while True:
                own = self._processes.setdefault(person, [])
                for gone in [each for each in own if not each.is_busy and each.has_ended()]:
                    own.remove(gone)
                    gone.close()
                idle = [each for each in own if not each.is_busy]
                if idle:
                    chosen = max(idle, key=lambda each: each.used_at)
                    chosen.is_busy = True
                    return chosen
                if len(own) + self._num_begun[person] < MOST_PER_PERSON and self._has_room():
                    self._num_begun[person] += 1
                    break
                if not self._changed.wait(ends_at - time.monotonic()):
                    raise ModelError("other models are being tried at this moment: try again in a minute")
        started = None
        try:
            started = self._template.fork(_Process, b"model")
            return started
        except TemplateError as error:
            raise ModelError(
                f"the process that runs models could not be started ({error}): try again"
            ) from error
        finally:
            with self._changed:
                self._num_begun[person] -= 1
                if started is None:
                    self._changed.notify_all()
                else:
                    self._processes.setdefault(person, []).append(started)

    def _has_room(self) -> bool:
        """Return True if one more process may start; ends the idle one that was used longest ago."""
        everyone = [(each, own) for own in self._processes.values() for each in own]
        if len(everyone) + self._num_begun.total() < MOST_PROCESSES:
            return True
        idle = [(each, own) for each, own in everyone if not each.is_busy]
        if not idle:
            return False
        oldest, own = min(idle, key=lambda pair: pair[0].used_at)
        own.remove(oldest)
        oldest.close()
        return True

    def _give_back(self, person: str, process: _Process, *, is_good: bool) -> None:
        with self._changed:
            process.is_busy = False
            process.used_at = time.monotonic()
            if not is_good:
                own = self._processes.get(person, [])
                if process in own:
                    own.remove(process)
                process.close()
                process.kill()
            self._changed.notify_all()
