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
        self, name: str, *, num_threads: int, per_person: int, max_requests: int, max_open_files: int = 0
    ) -> None:
        """Create the threads.

        Args:
            name: name of the work in messages, as in "you have requested … 8 times at once".
            per_person: number of threads that one user can use at the same time.
            max_requests: number of calls that one user may have running and waiting; further calls are
                refused.
            max_open_files: number of files that may be generated and sent at the same time; a quarter of them
                per user.
        """
        self._max_open_files = max_open_files
        self._open: Counter[str] = Counter()
        self._name = name
        self._num_threads = num_threads
        self._per_person = per_person
        self._max_requests = max_requests
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name.replace(" ", "-"))
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        # Waiting calls by user; the least recently served user comes first.
        self._waiting: dict[str, deque[_Job]] = {}

    async def run(
        self, function: Callable[Values, Result], *args: Values.args, **kwargs: Values.kwargs
    ) -> Result:
        """Run a function in a thread, queued fairly among users, and return its result.

        Raises:
            TooManyError: if the current user has too many calls queued or running.
        """
        return await asyncio.wrap_future(self.submit(functools.partial(function, *args, **kwargs)))

    async def iterate(self, items: Iterator[Result]) -> AsyncIterator[Result]:
        """Yield the items of an iterator, each computed as a separate call."""
        end = object()
        while (
            item := await asyncio.wrap_future(self._queue(functools.partial(next, items, end)))
        ) is not end:
            yield item

    @contextlib.contextmanager
    def count_open_file(self) -> Iterator[None]:
        """Count a file until the client has read it, because its process lives until then.

        Raises:
            TooManyError: if the current user, or all users together, download too many files.
        """
        person = current_user().name
        with self._lock:
            if person and self._open[person] >= self._max_open_files // 4:
                raise TooManyError(
                    f"you are downloading {self._open[person]} files at the same time: wait until a "
                    "download is complete"
                )
            if self._open.total() >= self._max_open_files:
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
        async def handle(*args: Any, **kwargs: Any) -> Any:
            return await self.run(function, *args, **kwargs)

        return handle

    def _count(self) -> str:
        person = current_user().name
        # Without login, the limit of one user applies to all clients together, so it is larger.
        limit = self._max_requests if person else self._max_requests * self._num_threads
        with self._lock:
            if self._requests[person] >= limit:
                raise TooManyError(
                    f"you have requested {self._name} {limit} times at once: wait until a request is complete"
                )
            self._requests[person] += 1
        return person

    def _uncount(self, person: str) -> None:
        with self._lock:
            self._requests[person] -= 1
            if not self._requests[person]:
                del self._requests[person]

    def _queue(self, call: Callable[[], Result]) -> Future[Result]:
        result: Future[Result] = Future()
        person = current_user().name
        job = result, functools.partial(contextvars.copy_context().run, call)
        with self._lock:
            self._waiting.setdefault(person, deque()).append(job)
            self._start_next()
        return result

    def _start_next(self) -> None:
        while self._running.total() < self._num_threads:
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
CLICKS = Workers("answers", num_threads=16, per_person=1, max_requests=100)
# For calls that take a large part of a second or much CPU time, such as exports and searches.
SLOW = Workers("exports and searches", num_threads=2, per_person=1, max_requests=8, max_open_files=16)
# For starts, which wait until the supervisor answers.
STARTS = Workers("starts", num_threads=6, per_person=1, max_requests=10)


class Router(APIRouter):
    """Routes whose handlers run and encode their answers in the threads for clicks by default.

    A ValueError with an `http_status` is answered with this status and its message. Other errors are bugs.
    """

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Add a route."""
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = CLICKS.handler(_encode_result(endpoint))
        super().add_api_route(path, _convert_refusals(endpoint), **options)


def _convert_refusals(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            return await endpoint(*args, **kwargs)
        except ValueError as error:
            if (status := getattr(error, "http_status", None)) is None:
                raise
            raise HTTPException(status_code=status, detail=str(error)) from error

    return answer


def _encode_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function return an encoded response, because FastAPI would encode it on the event loop."""

    @functools.wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Response:
        result = function(*args, **kwargs)
        if isinstance(result, Response):
            return result
        return Response(orjson.dumps(result, option=orjson.OPT_NON_STR_KEYS), media_type="application/json")

    return answer


# Gets a quarter of a core while training uses all of them; with less, an export would take minutes.
NICENESS = 5
CHUNK_BYTES = 256 * 1024


class SlowProcessError(OSError):
    """The process failed before it finished."""


def module_output(module: str, request: Any) -> Iterator[bytes]:
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
                process.stdin.write(orjson.dumps(request))
                process.stdin.close()
            while chunk := process.stdout.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
                yield chunk
            if process.wait() != 0:
                raise SlowProcessError(f"{module} ended with {process.returncode}")
        finally:
            process.kill()


def file_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a regular file.

    Raises:
        OSError, ValueError: if it cannot be read.
    """
    with plain_files.open_plain(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def make_nice(process: subprocess.Popen[bytes]) -> None:
    """Lower this process's priority below the page and training."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)


# Time limit per chunk of up to a megabyte: a slow client occupies a process and a slot that others wait for.
CHUNK_TIMEOUT_S = 60.0


class GeneratedFile(StreamingResponse):
    """A downloaded file, generated by workers chunk by chunk."""

    def __init__(self, workers: Workers, chunks: Iterator[bytes], name: str, media_type: str) -> None:
        """Create the response.

        Args:
            name: file name of plain letters, because the header does not escape it.
        """
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        super().__init__(workers.iterate(chunks), media_type=media_type, headers=headers)
        self._workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, unless too many are being sent; abort if the client is too slow."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                await send(message)

        try:
            with self._workers.count_open_file():
                await super().__call__(scope, receive, send_in_time)
        except TooManyError as error:
            await JSONResponse({"detail": str(error)}, status_code=429)(scope, receive, send)
        except TimeoutError:
            return  # ending without the last chunk closes the connection
