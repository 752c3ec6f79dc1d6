"""The live routes: a run's numbers as Server-Sent Events, a poll with the same encoder, views and logs."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request
from fastapi.responses import Response

from ddp_gui.background.workers import CLICKS, Router, TooManyError
from ddp_gui.events import messages
from ddp_gui.events.run_view import RunView
from ddp_gui.events.series import ChartView
from ddp_gui.events.tables import Axis, Smoothing, span_of
from ddp_gui.run.follow import EventStream, Followers
from ddp_gui.run.summary import describe_configuration, summarise
from ddp_gui.runs.runs import RunStore
from trainers.machine.os_errors import explain

MAX_CURSOR = 2**53  # as far as a browser counts
CHECK_AGAIN_AFTER_S = 1.0
_EVENT_ID = re.compile(r"\d{1,15}", re.ASCII)


def view_or_404(store: RunStore, run_id: str) -> RunView:
    """Return a run's view, or answer that there is no such run."""
    try:
        return store.view(run_id)
    except (OSError, ValueError) as error:
        raise HTTPException(status_code=404, detail=explain(error)) from error


# The machines whose ranks are asked for one by one, such as 0,3; nothing: all.
Nodes = Annotated[str | None, Query(pattern=r"^[\d,]*$", max_length=5_000)]


def view_from(
    axis: Axis = "step",
    smoothing: float = 0,
    smooth_over: Smoothing = "step",
    smooth_throughput: bool = False,
    nodes: Nodes = None,
) -> ChartView:
    """Return the chart settings in a request's query."""
    smoothed = ("loss", "throughput") if smooth_throughput else ("loss",)
    shown = None if nodes is None else frozenset(int(node[:5]) for node in nodes.split(",") if node)
    smoothing = span_of(smoothing, smooth_over)
    if smoothing == 0:
        smoothed = ("loss",)
    return ChartView(axis=axis, smoothing=smoothing, smooth_over=smooth_over, smoothed=smoothed, nodes=shown)


# The client's position in a file or in a run's events; -1: none yet.
Cursor = Annotated[int, Query(ge=-1, le=MAX_CURSOR)]
AskedView = Annotated[ChartView, Depends(view_from)]


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs`."""
    router = Router(prefix="/live/runs")
    followers = Followers()

    def view_of(run_id: str) -> RunView:
        return view_or_404(store, run_id)

    @router.get("/{run_id}/summary")
    def summary(run_id: str) -> dict[str, Any]:
        view = view_of(run_id)
        return summarise(view, store)

    @router.get("/{run_id}/configuration")
    def configuration(run_id: str) -> dict[str, Any]:
        return describe_configuration(view_of(run_id).run, store)

    @router.get("/{run_id}/poll")
    def poll(run_id: str, look: AskedView, since: Cursor = -1) -> Response:
        view = view_of(run_id)
        view.catch_up()
        return _json(messages.message_for(view, since, look))

    @router.get("/{run_id}/view")
    def zoomed(run_id: str, look: AskedView, request: Request) -> Response:
        view = view_of(run_id)
        try:
            low, high = float(request.query_params["from"]), float(request.query_params["to"])
        except (KeyError, ValueError) as error:
            raise HTTPException(status_code=422, detail="from and to must be numbers") from error
        if not (math.isfinite(low) and math.isfinite(high)):
            raise HTTPException(status_code=422, detail="from and to must be finite numbers")
        view.catch_up()
        with view.lock:
            return _json({"traces": view.series.range(low, high, look)})

    @router.get("/{run_id}/stream")
    async def stream(run_id: str, look: AskedView, request: Request, since: Cursor = -1) -> Response:
        try:
            view = await CLICKS.run(view_of, run_id)
        except TooManyError as error:
            raise HTTPException(status_code=429, detail=str(error)) from error
        # After a broken connection the browser sends its position by itself.
        resumed_at = request.headers.get("last-event-id", "")
        cursor = int(resumed_at) if _EVENT_ID.fullmatch(resumed_at) else since
        messages_of_run = followers.of(view).messages(cursor, look)
        return EventStream(while_shown(messages_of_run, lambda: store.is_shown(run_id)))

    return router


async def while_shown(messages: AsyncGenerator[bytes], is_shown: Callable[[], bool]) -> AsyncGenerator[bytes]:
    """Yield messages while the current user may see the run: a teacher may hide it meanwhile."""
    looked_s = time.monotonic()
    async with contextlib.aclosing(messages):
        async for message in messages:
            if time.monotonic() - looked_s > CHECK_AGAIN_AFTER_S:
                looked_s = time.monotonic()
                if not await CLICKS.run(is_shown):
                    return
            yield message


def _json(message: dict[str, Any]) -> Response:
    return Response(messages.encode(message), media_type="application/json")
