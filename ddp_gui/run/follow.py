"""Follows runs for their viewers, and sends what is new as Server-Sent Events.

One follower per run reads its files, however many people watch: each message is encoded once and written to
all. Slow viewers never block others: each fetches what it has not seen when it is ready, and one that reads
nothing for ten seconds is disconnected.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from starlette.responses import Response

from ddp_gui.background.workers import CLICKS
from ddp_gui.events import messages
from ddp_gui.events.messages import Known
from ddp_gui.events.run_view import RunView
from ddp_gui.events.series import ChartView
from trainers.contract import events

POLL_EVERY_S = 0.02
SEND_EVERY_S = 0.1
# The browser draws on the cores that train: fewer drawings there leave more for the ranks.
SEND_EVERY_WHERE_CORES_ARE_FULL_S = 0.25
NUM_CORES = os.cpu_count() or 1
FREE_CORES = 0.25  # the cores are full when less than this of one of them is idle
HEAD_EVERY_S = 1.0
CUT_OFF_AFTER_S = 10.0
# More than this is read in a thread, in chunks; the page shows the progress.
MUCH_BYTES = 2 * 1024 * 1024
VERY_MUCH_BYTES = 16 * 1024 * 1024
LOADING_PIECE_S = 0.3

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Follower:
    """Reads one run's files while it has viewers, and notifies them of changes."""

    def __init__(self, view: RunView, on_left_alone: Callable[[], None] = lambda: None) -> None:
        self.view = view
        self._on_left_alone = on_left_alone
        self._num_viewers = 0
        self._watching: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._encoded: dict[tuple[Any, ...], tuple[bytes, int]] = {}
        self._state = ""
        self._told_at = 0.0
        self._failure: Exception | None = None

    @property
    def is_watched(self) -> bool:
        return self._num_viewers > 0

    async def messages(self, since: int, look: ChartView) -> AsyncGenerator[bytes]:
        """Yield a snapshot or the missing part, then updates, until the run has ended."""
        self._join()
        try:
            async for loading in self._load(since):
                yield loading
            cursor, known = since, None
            while True:
                is_over = self._is_over()
                news = self._news
                # The first message may be a whole long run; later updates are small.
                message = partial(self._message, cursor, look, known)
                encoded, cursor_after = await CLICKS.run(message) if known is None else message()
                known = Known(self.view)
                yield encoded
                cursor = cursor_after
                if is_over:
                    yield b"event: end\ndata: {}\n\n"
                    return
                await news.wait()
                if self._failure is not None:
                    raise self._failure
        finally:
            self._leave()

    def _join(self) -> None:
        self._num_viewers += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def _leave(self) -> None:
        self._num_viewers -= 1
        if self._num_viewers == 0 and self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._encoded.clear()
            self._on_left_alone()

    async def _load(self, since: int) -> AsyncGenerator[bytes]:
        """Read the existing events; yield a preview of a long file meanwhile."""
        unread, _ = self.view.unread()
        if since < 0 and unread > VERY_MUCH_BYTES:
            first = await CLICKS.run(messages.preview, self.view)
            yield _as_event(messages.encode(first), -1)
        while unread > MUCH_BYTES:
            await CLICKS.run(self.view.catch_up, LOADING_PIECE_S)
            unread, size = self.view.unread()
            share = round(1 - unread / max(1, size), 3)
            yield _as_event(messages.encode({"type": "loading", "loading": share}), since)
        await CLICKS.run(self.view.catch_up)

    def _message(self, since: int, look: ChartView, known: Known | None) -> tuple[bytes, int]:
        """Return the encoded update for a cursor, and the next cursor; equal updates are encoded once."""
        now = Known(self.view)
        knows = known is not None and (
            known.checkpoints is now.checkpoints,
            known.insights is now.insights,
            known.rank_history is now.rank_history,
        )
        key = (since, self.view.series.next_seq, look, knows)
        if key not in self._encoded:
            message = messages.message_for(self.view, since, look, known)
            self._encoded[key] = _as_event(messages.encode(message), message["cursor"]), message["cursor"]
        return self._encoded[key]

    async def _watch(self) -> None:
        try:
            while True:
                # Collect events between two messages, so that a fast loop causes few of them.
                every_s = (
                    SEND_EVERY_WHERE_CORES_ARE_FULL_S
                    if cores_are_full(self.view.series.latest.get("devices"), NUM_CORES)
                    else SEND_EVERY_S
                )
                rest_s = self._told_at + every_s - time.monotonic()
                await asyncio.sleep(max(POLL_EVERY_S, rest_s))
                if await self._is_news():
                    self._tell()
        except (OSError, ValueError) as error:
            # This ends every viewer's connection; each then polls, and the answer says why.
            self._failure = error
            self._tell()

    async def _is_news(self) -> bool:
        state = self.view.status().state
        is_live = state in events.LIVE_STATES
        is_news = state != self._state or (is_live and time.monotonic() - self._told_at >= HEAD_EVERY_S)
        self._state = state
        if not self.view.has_grown():
            return is_news
        if self.view.unread()[0] > MUCH_BYTES:
            await asyncio.to_thread(self.view.catch_up)
        else:
            self.view.catch_up()
        return True

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        self._encoded.clear()
        self._news, told = asyncio.Event(), self._news
        told.set()

    def _is_over(self) -> bool:
        return self.view.status().state not in events.LIVE_STATES and not self.view.has_grown()


def cores_are_full(devices: events.Event | None, num_cores: int) -> bool:
    """Tell by the newest `devices` event whether CPU ranks leave no core free."""
    if devices is None or not devices["devices"] or devices["devices"][0]["kind"] != "cpu":
        return False
    idle_percent = devices.get("idle_cpu_percent")
    return idle_percent is not None and idle_percent * num_cores < 100 * FREE_CORES


class Followers:
    """The followers of the runs that are being viewed."""

    def __init__(self) -> None:
        self._held: dict[str, Follower] = {}

    def of(self, view: RunView) -> Follower:
        """Yield the follower of a run's view; the last viewer removes it, and its columns."""
        run_id = view.run.run_id
        follower = self._held.get(run_id)
        if follower is None or follower.view is not view:
            follower = self._held[run_id] = Follower(view, lambda: self._drop(run_id, view))
        return follower

    def _drop(self, run_id: str, view: RunView) -> None:
        held = self._held.get(run_id)
        if held is not None and held.view is view:
            del self._held[run_id]


class EventStream(Response):
    """A response that writes messages until they end, or the viewer disconnects or stops reading."""

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
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._to_send.aclose()
        if sending.done() and not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async for event in self._to_send:
            try:
                async with asyncio.timeout(CUT_OFF_AFTER_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except TimeoutError:
                return  # it does not read; returning without the last chunk closes the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _as_event(data: bytes, cursor: int) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (cursor, data)
