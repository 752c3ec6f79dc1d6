"""Threads and processes for the page's slow work, shared fairly among its users."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson
from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.responses import Response

from ddp_gui.auth.rights import current_user
from ddp_gui.http.front import Message, Receive, Scope, Send
from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment, lifeline

Values = ParamSpec("Values")
Result = TypeVar("Result")
_Job = tuple["Future[Any]", Callable[[], Any]]


class TooManyError(ValueError):
    """A user has reached the limit of concurrent work."""

    http_status = 429


class Workers:
    """The threads for one kind of work; thread-safe, also across event loops.

    Without login all clients count as one user, so only the total limits apply.
    """

    def __init__(
        self, what: str, *, at_once: int, per_person: int, most_asked: int, most_open: int = 0
    ) -> None:
        """Create the threads.

        Args:
            what: name of the work in messages, as in "you have requested … 8 times at once".
            per_person: number of threads that one user can use at the same time.
            most_asked: number of calls that one user may have running and waiting; further calls are refused.
            most_open: number of files that may be generated and sent at the same time; a quarter of them per
                user.
        """
        self._most_open = most_open
        self._open: Counter[str] = Counter()
        self._what = what
        self._at_once = at_once
        self._per_person = per_person
        self._most_asked = most_asked
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix=what.replace(" ", "-"))
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        # Waiting calls by user; the least recently served user comes first.
        self._waiting: dict[str, deque[_Job]] = {}

    async def run(
        self, function: Callable[Values, Result], *values: Values.args, **named: Values.kwargs
    ) -> Result:
        """Run a function in a thread, queued fairly among users, and return its result.

        Raises:
            TooManyError: if the current user has too many calls queued or running.
        """
        return await asyncio.wrap_future(self.submit(functools.partial(function, *values, **named)))

    async def pieces(self, made: Iterator[Result]) -> AsyncIterator[Result]:
        """Yield the items of an iterator, each computed as a separate call."""
        end = object()
        while (
            piece := await asyncio.wrap_future(self._queue(functools.partial(next, made, end)))
        ) is not end:
            yield piece

    @contextlib.contextmanager
    def count_open_file(self) -> Iterator[None]:
        """Count a file until the client has read it, because its process lives until then.

        Raises:
            TooManyError: if the current user, or all users together, download too many files.
        """
        person = current_user().name
        with self._lock:
            if person and self._open[person] >= self._most_open // 4:
                raise TooManyError(
                    f"you are downloading {self._open[person]} files at the same time: wait until a "
                    "download is complete"
                )
            if self._open.total() >= self._most_open:
                raise TooManyError("too many files are being downloaded at the moment: try again in a minute")
            self._open[person] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[person] -= 1

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue a call, like `run`, but without an event loop.

        Raises:
            TooManyError: if the current user has too many calls queued or running.
        """
        person = self._count()
        result = self._queue(call)
        result.add_done_callback(lambda _: self._uncount(person))
        return result

    def handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a route handler that runs its work in these threads."""

        @functools.wraps(function)
        async def handle(*values: Any, **named: Any) -> Any:
            return await self.run(function, *values, **named)

        return handle

    def _count(self) -> str:
        person = current_user().name
        # Without login, the limit of one user applies to all clients together, so it is larger.
        most = self._most_asked if person else self._most_asked * self._at_once
        with self._lock:
            if self._asked[person] >= most:
                raise TooManyError(
                    f"you have requested {self._what} {most} times at once: wait until a request is complete"
                )
            self._asked[person] += 1
        return person

    def _uncount(self, person: str) -> None:
        with self._lock:
            self._asked[person] -= 1
            if not self._asked[person]:
                del self._asked[person]

    def _queue(self, call: Callable[[], Result]) -> Future[Result]:
        result: Future[Result] = Future()
        person = current_user().name
        job = result, functools.partial(contextvars.copy_context().run, call)
        with self._lock:
            self._waiting.setdefault(person, deque()).append(job)
            self._start_next()
        return result

    def _start_next(self) -> None:
        while self._running.total() < self._at_once:
            ready = [name for name in self._waiting if not name or self._running[name] < self._per_person]
            if not ready:
                return
            person = min(ready, key=lambda name: self._running[name])
            jobs = self._waiting.pop(person)
            job = jobs.popleft()
            if jobs:
                self._waiting[person] = jobs
            self._running[person] += 1
            self._threads.submit(self._do, person, *job)

    def _do(self, person: str, result: Future[Any], call: Callable[[], Any]) -> None:
        # The client may have disconnected in the meantime.
        if result.set_running_or_notify_cancel():
            try:
                value = call()
            except BaseException as error:  # noqa: BLE001 - it is raised in the waiting coroutine
                self._release(person)
                result.set_exception(error)
                return
            self._release(person)
            result.set_result(value)
        else:
            self._release(person)

    def _release(self, person: str) -> None:
        with self._lock:
            self._running[person] -= 1
            if not self._running[person]:
                del self._running[person]
            self._start_next()


# For clicks, which take milliseconds, so one thread per user is enough.
CLICKS = Workers("answers", at_once=16, per_person=1, most_asked=100)
# For calls that take a large part of a second or much CPU time, such as exports and searches.
SLOW = Workers("exports and searches", at_once=2, per_person=1, most_asked=8, most_open=16)
# For starts, which wait until the supervisor answers.
STARTS = Workers("starts", at_once=6, per_person=1, most_asked=10)


class Router(APIRouter):
    """Routes whose handlers run and encode their answers in the threads for clicks by default.

    A ValueError with an `http_status` is answered with this status and its message. Other errors are bugs.
    """

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route."""
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = CLICKS.handler(_encoding(endpoint))
        super().add_api_route(path, _answering_refusals(endpoint), **options)


def _answering_refusals(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def answer(*values: Any, **named: Any) -> Any:
        try:
            return await endpoint(*values, **named)
        except ValueError as error:
            if (status := getattr(error, "http_status", None)) is None:
                raise
            raise HTTPException(status_code=status, detail=str(error)) from error

    return answer


def _encoding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function return an encoded response, because FastAPI would encode it on the event loop."""

    @functools.wraps(function)
    def answer(*values: Any, **named: Any) -> Response:
        found = function(*values, **named)
        if isinstance(found, Response):
            return found
        return Response(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")

    return answer


# Gets a quarter of a core while training uses all of them; with less, an export would take minutes.
NICENESS = 5
PIECE_BYTES = 256 * 1024


class SlowProcessError(OSError):
    """The process failed before it finished."""


def module_output(module: str, asked: Any) -> Iterator[bytes]:
    """Yield the output of `python -m MODULE` for this JSON input; the process ends with the page.

    Raises:
        SlowProcessError: if it fails; the output so far is incomplete.
    """
    with subprocess.Popen(
        lifeline.bound(sys.executable, "-m", module),
        cwd=REPOSITORY,
        env=environment.for_a_child(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            make_nice(process)
            with contextlib.suppress(BrokenPipeError):  # the exit code is more informative
                process.stdin.write(orjson.dumps(asked))
                process.stdin.close()
            while piece := process.stdout.read1(PIECE_BYTES):  # type: ignore[attr-defined]
                yield piece
            if process.wait() != 0:
                raise SlowProcessError(f"{module} ended with {process.returncode}")
        finally:
            process.kill()


def file_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a regular file.

    Raises:
        OSError, ValueError: if it cannot be read.
    """
    with plain_files.open_plain(path) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


def make_nice(process: subprocess.Popen[bytes]) -> None:
    """Lower this process's priority below the page and training."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)


# Time limit per chunk of up to a megabyte: a slow client occupies a process and a slot that others wait for.
TAKEN_WITHIN_S = 60.0


class GeneratedFile(StreamingResponse):
    """A downloaded file, generated by workers chunk by chunk."""

    def __init__(self, workers: Workers, pieces: Iterator[bytes], name: str, media_type: str) -> None:
        """Create the response.

        Args:
            name: file name of plain letters, because the header does not escape it.
        """
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        super().__init__(workers.pieces(pieces), media_type=media_type, headers=headers)
        self._workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, unless too many are being sent; abort if the client is too slow."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await send(message)

        try:
            with self._workers.count_open_file():
                await super().__call__(scope, receive, send_in_time)
        except TooManyError as error:
            await JSONResponse({"detail": str(error)}, status_code=429)(scope, receive, send)
        except TimeoutError:
            return  # ending without the last chunk closes the connection
