"""Live streams for the page of a run.

Each viewed run has one `RunFollower`. It reads the run's files in a worker thread and wakes its viewers after
changes. Viewers with equal chart settings share one encoded update.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import math
import os
import re
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Annotated, Any, NamedTuple
from weakref import WeakValueDictionary

from fastapi import Depends, HTTPException, Query, Request
from fastapi.responses import Response

from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import CLICKS, Router, Workers
from ddp_gui.events import run_view
from ddp_gui.events.run_view import RareParts, RunView
from ddp_gui.events.tables import Axis, ChartView, Smoothing, span_of
from ddp_gui.http.front import Receive, Scope, Send
from ddp_gui.run.summary import describe_configuration, summarise
from ddp_gui.runs.runs import RunStore
from trainers.contract import events
from trainers.forward import state as forward_state

POLL_EVERY_S = 0.02
SEND_EVERY_S = 0.1
# A browser on this machine uses the same cores: a lower update rate leaves more time for the ranks.
SEND_EVERY_WHERE_CORES_ARE_FULL_S = 0.25
NUM_CORES = os.cpu_count() or 1
FREE_CORES = 0.25  # the CPU counts as fully used if less than this fraction of one core is idle
HEAD_EVERY_S = 1.0
CUT_OFF_AFTER_S = 10.0
# More events than this are read in a thread, in chunks, while the page shows the progress.
LOAD_IN_CHUNKS_BYTES = 2 * 1024 * 1024
PREVIEW_FROM_BYTES = 16 * 1024 * 1024
LOADING_CHUNK_S = 0.3

# Separate pools, so that one viewer's many chart settings never delay reading.
READERS = Workers("live runs", num_threads=2, per_person=2, max_requests=1_000)
ENCODERS = Workers("live charts", num_threads=2, per_person=1, max_requests=1_000)


class Update(NamedTuple):
    """An encoded message, its cursor, what viewers then know, and True for the last message."""

    encoded: bytes
    cursor: int
    known: RareParts
    is_last: bool


class _SharedUpdate:
    """An update that is encoded once for several viewers.

    Every user's queue contains the encoding, and the first queue that reaches it encodes the update for all
    users. Therefore no user waits for unrelated encodings of another user.
    """

    def __init__(self, encode: Callable[[], Update]) -> None:
        self._encode = encode
        self._queued_by: set[str] = set()
        self._encode_lock = threading.Lock()
        self._future: Future[Update] = Future()

    async def result(self) -> Update:
        """Wait until the update is encoded, and return it.

        Raises:
            TooManyError: if the current user has too many encodings queued or running.
        """
        person = current_user().name
        if person not in self._queued_by and not self._future.done():
            ENCODERS.submit(self._run_encoding)
            self._queued_by.add(person)
        # Shield the encoding: a viewer that disconnects must not cancel it for other viewers.
        return await asyncio.shield(asyncio.wrap_future(self._future))

    def _run_encoding(self) -> None:
        if not self._encode_lock.acquire(blocking=False):
            return  # another user's queue has already started the encoding
        try:
            # Encode without a current user, because all viewers get the same bytes.
            self._future.set_result(contextvars.Context().run(self._encode))
        except Exception as error:  # noqa: BLE001 - raised again in the waiting viewers
            self._future.set_exception(error)


class RunFollower:
    """Reads a run's files while it has viewers, and notifies them of changes."""

    def __init__(self, view: RunView) -> None:
        self.view = view
        self._num_viewers = 0
        self._watch_task: asyncio.Task[None] | None = None
        self._next_change = asyncio.Event()
        self._encoded: dict[tuple[Any, ...], _SharedUpdate] = {}
        self._now: RareParts | None = None
        self._state = ""
        self._notified_at = 0.0
        self._failure: Exception | None = None

    @property
    def is_watched(self) -> bool:
        return self._num_viewers > 0

    async def messages(self, since: int, chart_view: ChartView) -> AsyncGenerator[bytes]:
        """Yield a snapshot or the missing events, then updates, until the run has ended."""
        if chart_view.nodes is not None:  # ignore nodes that the run does not have
            chart_view = replace(chart_view, nodes=chart_view.nodes & set(range(self.view.config.num_nodes)))
        self._join()
        try:
            async for loading in self._load(since):
                yield loading
            cursor, known = since, None
            while True:
                next_change = self._next_change
                update = await self._update(cursor, chart_view, known)
                yield update.encoded
                cursor, known = update.cursor, update.known
                if update.is_last:
                    yield b"event: end\ndata: {}\n\n"
                    return
                await next_change.wait()
                if self._failure is not None:
                    raise self._failure
        finally:
            self._leave()

    def _join(self) -> None:
        self._num_viewers += 1
        if self._watch_task is None:
            self._watch_task = asyncio.create_task(self._watch())
            self._watch_task.add_done_callback(self._on_watch_end)

    def _leave(self) -> None:
        self._num_viewers -= 1
        if self._num_viewers == 0 and self._watch_task is not None:
            self._watch_task.cancel()
            self._watch_task = None
            self._encoded.clear()

    async def _load(self, since: int) -> AsyncGenerator[bytes]:
        """Read the existing events; for a long file, yield a preview and the progress."""
        unread, _ = await CLICKS.run(self.view.unread)
        if since < 0 and unread > PREVIEW_FROM_BYTES:
            yield await CLICKS.run(
                lambda: _as_event(run_view.encode_message(run_view.preview_message(self.view)), -1)
            )
        while unread > LOAD_IN_CHUNKS_BYTES:
            if not await CLICKS.run(self.view.catch_up, LOADING_CHUNK_S):
                break  # only an unfinished last line is left
            unread, size = await CLICKS.run(self.view.unread)
            share = round(1 - unread / max(1, size), 3)
            yield _as_event(run_view.encode_message({"type": "loading", "loading": share}), since)
        await CLICKS.run(self.view.catch_up)

    async def _update(self, since: int, chart_view: ChartView, known: RareParts | None) -> Update:
        """Return the update for a cursor. Viewers with equal settings share one encoding."""
        is_known = None if known is None or self._now is None else known.same_as(self._now)
        key = (since, self.view.series.next_seq, chart_view, is_known)
        if key not in self._encoded:
            self._encoded[key] = _SharedUpdate(functools.partial(self._encode, since, chart_view, known))
        return await self._encoded[key].result()

    def _encode(self, since: int, chart_view: ChartView, known: RareParts | None) -> Update:
        is_last = self.view.status().state not in events.LIVE_STATES and not self.view.has_grown()
        with self.view.lock:
            now = RareParts(self.view)
            message = run_view.message_for(self.view, since, chart_view, known)
        encoded = _as_event(run_view.encode_message(message), message["cursor"])
        return Update(encoded, message["cursor"], now, is_last)

    async def _watch(self) -> None:
        while True:
            # Collect events between two messages, so that a fast loop causes few of them.
            interval_s = (
                SEND_EVERY_WHERE_CORES_ARE_FULL_S
                if cores_are_full(self.view.series.latest.get("devices"), NUM_CORES)
                else SEND_EVERY_S
            )
            wait_s = self._notified_at + interval_s - time.monotonic()
            await asyncio.sleep(max(POLL_EVERY_S, wait_s))
            if await READERS.run(self._has_changed):
                self._notify()

    def _on_watch_end(self, task: asyncio.Task[None]) -> None:
        """Close all viewers' connections after an error; they then poll and get the error."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failure = error
            self._notify()

    def _has_changed(self) -> bool:
        state = self.view.status().state
        is_live = state in events.LIVE_STATES
        is_due = state != self._state or (is_live and time.monotonic() - self._notified_at >= HEAD_EVERY_S)
        self._state = state
        has_grown = self.view.has_grown()
        if has_grown:
            self.view.catch_up()
        if has_grown or is_due:
            with self.view.lock:
                self._now = RareParts(self.view)
        return has_grown or is_due

    def _notify(self) -> None:
        self._notified_at = time.monotonic()
        self._encoded.clear()
        self._next_change, previous = asyncio.Event(), self._next_change
        previous.set()


def cores_are_full(devices: events.Event | None, num_cores: int) -> bool:
    """Return True if the latest `devices` event shows that CPU ranks leave no core idle."""
    if devices is None or not devices["devices"] or devices["devices"][0].get("kind") != "cpu":
        return False
    idle_percent = devices.get("idle_cpu_percent")
    return idle_percent is not None and idle_percent * num_cores < 100 * FREE_CORES


class EventStream(Response):
    """A response that sends messages until they end, or the viewer disconnects or stops reading."""

    def __init__(self, events_to_send: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._to_send = events_to_send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one viewer."""
        del scope
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        send_task = asyncio.create_task(self._send_all(send))
        disconnect_task = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({send_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect_task.cancel()
            send_task.cancel()
            await asyncio.gather(send_task, disconnect_task, return_exceptions=True)
            await self._to_send.aclose()
        if send_task.done() and not send_task.cancelled() and (error := send_task.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async for event in self._to_send:
            try:
                async with asyncio.timeout(CUT_OFF_AFTER_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except TimeoutError:
                return  # the viewer does not read; returning without the last chunk closes the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _as_event(data: bytes, cursor: int) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (cursor, data)


MAX_CURSOR = 2**53  # largest exact integer in a browser
CHECK_AGAIN_AFTER_S = 1.0
_EVENT_ID = re.compile(r"\d{1,15}", re.ASCII)


# Query value: nodes whose ranks are requested individually, such as 0,3; None: all nodes.
Nodes = Annotated[str | None, Query(pattern=r"^[\d,]*$", max_length=5_000)]


def view_from(
    axis: Axis = "step",
    smoothing: float = 0,
    smooth_over: Smoothing = "step",
    smooth_throughput: bool = False,
    nodes: Nodes = None,
) -> ChartView:
    """Return the chart settings from the query of a request."""
    smoothed = ("loss", "throughput") if smooth_throughput else ("loss",)
    node_set = None if nodes is None else frozenset(int(node[:5]) for node in nodes.split(",") if node)
    smoothing = span_of(smoothing, smooth_over)
    if smoothing == 0:
        smoothed = ("loss",)
    return ChartView(
        axis=axis, smoothing=smoothing, smooth_over=smooth_over, smoothed=smoothed, nodes=node_set
    )


# Query value: the client's position in bytes or events; -1: none.
Cursor = Annotated[int, Query(ge=-1, le=MAX_CURSOR)]
RequestedView = Annotated[ChartView, Depends(view_from)]


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs`."""
    router = Router(prefix="/live/runs")
    # A follower exists while its viewers receive messages.
    followers: WeakValueDictionary[str, RunFollower] = WeakValueDictionary()

    @router.get("/{run_id}/summary")
    def summary(run_id: str) -> dict[str, Any]:
        view = store.view(run_id)
        return summarise(view, store)

    @router.get("/{run_id}/configuration")
    def configuration(run_id: str) -> dict[str, Any]:
        return describe_configuration(store.view(run_id).run, store)

    @router.get("/{run_id}/forwarding")
    def forwarding(run_id: str) -> dict[str, Any]:
        run = store.view(run_id).run
        return forward_state.page_state(run, run.read_config().forward_to)

    @router.get("/{run_id}/poll")
    def poll(run_id: str, chart_view: RequestedView, since: Cursor = -1) -> Response:
        view = store.view(run_id)
        view.catch_up()
        return _json(run_view.message_for(view, since, chart_view))

    @router.get("/{run_id}/view")
    def zoomed(run_id: str, chart_view: RequestedView, request: Request) -> Response:
        view = store.view(run_id)
        try:
            low, high = float(request.query_params["from"]), float(request.query_params["to"])
        except (KeyError, ValueError) as error:
            raise HTTPException(status_code=422, detail="from and to must be numbers") from error
        if not (math.isfinite(low) and math.isfinite(high)):
            raise HTTPException(status_code=422, detail="from and to must be finite numbers")
        view.catch_up()
        with view.lock:
            return _json({"traces": view.series.range(low, high, chart_view)})

    @router.get("/{run_id}/stream")
    async def stream(
        run_id: str, chart_view: RequestedView, request: Request, since: Cursor = -1
    ) -> Response:
        view = await CLICKS.run(store.view, run_id)
        # After a broken connection the browser automatically sends its position.
        resumed_at = request.headers.get("last-event-id", "")
        cursor = int(resumed_at) if _EVENT_ID.fullmatch(resumed_at) else since
        follower = followers.get(run_id)
        if follower is None or follower.view is not view:
            follower = followers[run_id] = RunFollower(view)
        messages_of_run = follower.messages(cursor, chart_view)
        return EventStream(while_shown(messages_of_run, lambda: store.is_shown(run_id)))

    return router


async def while_shown(messages: AsyncGenerator[bytes], is_shown: Callable[[], bool]) -> AsyncGenerator[bytes]:
    """Yield messages while the current user can see the run; a teacher may hide it at any time."""
    checked_at = time.monotonic()
    async with contextlib.aclosing(messages):
        async for message in messages:
            if time.monotonic() - checked_at > CHECK_AGAIN_AFTER_S:
                checked_at = time.monotonic()
                if not await CLICKS.run(is_shown):
                    return
            yield message


def _json(message: dict[str, Any]) -> Response:
    return Response(run_view.encode_message(message), media_type="application/json")
