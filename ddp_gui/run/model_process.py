"""The processes that run trained models on users' inputs: started on request, one or two per user,
short-lived.

They compute on the CPU. For a large model, a process uses a GPU while no run needs it. When the queue
allocates this GPU, the process is killed, and another process answers on the CPU. The same happens if CUDA
fails or the GPU's memory is full.

`trainers.predict.server` describes the other side. The page has no torch, so it only passes JSON on.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import orjson

from ddp_gui.background.torch_template import START_S, Answer, Fork, TemplateError, TorchTemplate
from trainers.machine import processes

# Time limit for loading a model and its data, and for one answer.
ANSWER_S = 30.0
MAX_PER_PERSON = 2
MAX_PROCESSES = 8
# Same limit as in `trainers.predict.server`, which reads no longer lines.
MAX_QUESTION = 2**20
TOOK_TOO_LONG = f"the model did not answer within {ANSWER_S:.0f} s, so its process was ended"
HAS_ENDED = "the process that runs the model was killed (by a user, or because memory ran out)"
# Field of a question: a free GPU may be used.
WANTS_GPU = "wants_gpu"
# Time without use of a GPU after a process with a GPU has ended during an answer.
NO_GPU_S = 600.0

# Calls its argument with the UUIDs of the free GPUs. During the call, the queue allocates no GPU.
WithFreeGpus = Callable[[Callable[[Sequence[str]], None]], None]


class ModelError(ValueError):
    """A model cannot answer; the message has the reason and the remedy."""

    http_status = 409


def _encode_question(question: Answer) -> bytes:
    """Return a question as a line to send.

    Raises:
        ModelError: if the question is too long, or has a number or character that JSON cannot represent.
    """
    try:
        line = orjson.dumps(question)
    except TypeError as error:
        raise ModelError(f"this input cannot be sent to the model: {error}") from error
    if len(line) >= MAX_QUESTION:
        raise ModelError(f"this input has {len(line):,} bytes; allowed: {MAX_QUESTION:,}")
    return line + b"\n"


class _Process(Fork):
    """One process of a user."""

    def __init__(self, connected: socket.socket, control: socket.socket) -> None:
        super().__init__(connected, control)
        self.is_busy = True
        self.used_at = time.monotonic()
        # The UUID of the process's GPU.
        self.gpu: str | None = None
        self.is_taken_back = False

    def reclaim_gpus(self) -> None:
        """Kill the process, because a run or another program uses its GPU."""
        self.is_taken_back = True
        self.kill()


class ModelProcesses:
    """All processes of the page; thread-safe.

    Args:
        template: the process that forks them; `close` ends it, too.
        keeps_ready: True if the template may be started before the first request.
        with_free_gpus: None: no GPU is used.
    """

    def __init__(
        self, template: TorchTemplate, *, keeps_ready: bool = True, with_free_gpus: WithFreeGpus | None = None
    ) -> None:
        self._template = template
        self._keeps_ready = keeps_ready
        self._with_free_gpus = with_free_gpus
        self._no_gpu_until = 0.0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._processes: dict[str, list[_Process]] = {}
        # Processes that are being started, by user.
        self._num_starting: Counter[str] = Counter()

    def get_ready(self) -> None:
        """Start the template, because a user may soon need a model. Does nothing if memory is low."""
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
        wants_gpu = self._with_free_gpus is not None and question.get(WANTS_GPU, False)
        line, num_sent = _encode_question(question), 0
        while True:
            process = self._take(person)
            is_good, num_received = False, 0
            try:
                gpu = self._gpu_for(process) if wants_gpu else None
                process.send(_encode_question(question | {"gpu": gpu}) if gpu else line)
                while not is_good:
                    answer = process.receive(time.monotonic() + ANSWER_S)
                    is_good = bool(answer.pop("end", False))
                    if "error" in answer:
                        raise ModelError(answer["error"])
                    num_received += 1
                    if num_received > num_sent:
                        num_sent += 1
                        yield answer
                return
            except GeneratorExit:
                is_good = is_good or self._stop(process)
                raise
            except OSError as error:
                if process.gpu is not None:
                    if not process.is_taken_back:
                        self._no_gpu_until = time.monotonic() + NO_GPU_S
                    continue  # ask another process again; tokens that the user already has are not repeated
                took_too_long = isinstance(error, TimeoutError)
                raise ModelError(f"{TOOK_TOO_LONG if took_too_long else HAS_ENDED}: try again") from None
            finally:
                self._give_back(person, process, is_good=is_good)

    def _gpu_for(self, process: _Process) -> str | None:
        """Return the GPU that a process may use now, or None; a process whose GPU is not free is killed."""

        def choose(free: Sequence[str]) -> None:
            if process.gpu is not None:
                if process.gpu not in free:
                    process.reclaim_gpus()
            elif free and time.monotonic() >= self._no_gpu_until:
                in_use = [other_process.gpu for other_process in self._gpu_processes()]
                process.gpu = min(free, key=in_use.count)

        assert self._with_free_gpus is not None
        self._with_free_gpus(choose)
        return process.gpu

    def _gpu_processes(self) -> list[_Process]:
        with self._lock:
            return [
                process
                for user_processes in self._processes.values()
                for process in user_processes
                if process.gpu is not None
            ]

    def processes(self) -> dict[int, float]:
        """Return the processes that use a GPU, with their start times."""
        infos = {process.pid: processes.inspect(process.pid) for process in self._gpu_processes()}
        return {pid: facts.started_unix_s for pid, facts in infos.items() if facts is not None}

    def reclaim_gpus(self, gpus: Collection[str]) -> None:
        """Kill the processes that use one of these GPUs; pending questions are answered on the CPU."""
        for process in self._gpu_processes():
            if process.gpu in gpus:
                process.reclaim_gpus()

    def close(self) -> None:
        """End all processes. Called when the page ends."""
        with self._lock:
            for process in [
                process for user_processes in self._processes.values() for process in user_processes
            ]:
                process.close()
            self._processes.clear()
        self._template.close()

    def _stop(self, process: _Process) -> bool:
        """Make a process stop after the current token; return True if it has stopped."""
        try:
            process.send(_encode_question({"do": "stop"}))
            deadline = time.monotonic() + ANSWER_S
            while not process.receive(deadline).get("end"):
                pass
        except OSError:  # includes timeouts
            return False
        return True

    def _take(self, person: str) -> _Process:
        """Return an idle or new process for this user; wait while all processes of the user are busy."""
        with self._changed:
            deadline = time.monotonic() + ANSWER_S + (START_S if self._num_starting[person] else 0.0)
            while True:
                user_processes = self._processes.setdefault(person, [])
                for ended in [
                    process for process in user_processes if not process.is_busy and process.has_ended()
                ]:
                    user_processes.remove(ended)
                    ended.close()
                idle = [process for process in user_processes if not process.is_busy]
                if idle:
                    chosen = max(idle, key=lambda process: process.used_at)
                    chosen.is_busy = True
                    return chosen
                if len(user_processes) + self._num_starting[person] < MAX_PER_PERSON and self._has_room():
                    self._num_starting[person] += 1
                    break
                if not self._changed.wait(deadline - time.monotonic()):
                    raise ModelError("other models are in use at the moment: try again in a minute")
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
                self._num_starting[person] -= 1
                if started is None:
                    self._changed.notify_all()
                else:
                    self._processes.setdefault(person, []).append(started)

    def _has_room(self) -> bool:
        """Return True if another process may start; ends the least recently used idle process if needed."""
        all_processes = [
            (process, user_processes)
            for user_processes in self._processes.values()
            for process in user_processes
        ]
        if len(all_processes) + self._num_starting.total() < MAX_PROCESSES:
            return True
        idle = [(process, user_processes) for process, user_processes in all_processes if not process.is_busy]
        if not idle:
            return False
        oldest, user_processes = min(idle, key=lambda pair: pair[0].used_at)
        user_processes.remove(oldest)
        oldest.close()
        return True

    def _give_back(self, person: str, process: _Process, *, is_good: bool) -> None:
        with self._changed:
            process.is_busy = False
            process.used_at = time.monotonic()
            if not is_good:
                user_processes = self._processes.get(person, [])
                if process in user_processes:
                    user_processes.remove(process)
                process.close()
                process.kill()
            self._changed.notify_all()
