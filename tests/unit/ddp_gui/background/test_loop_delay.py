"""Tests of the event loop's delay, which is measured with the request that caused it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from ddp_gui.background import loop_delay
from ddp_gui.background.loop_delay import FUNCTION, LoopDelay

HELD_S = 0.08


def compute(seconds: float) -> None:
    """Compute for this many seconds of CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def measured(delay: LoopDelay, scope: dict[str, Any] | None) -> None:
    """Block a measured loop from a separate task, as a request does."""

    async def hold() -> None:
        if scope is not None:
            loop_delay.begin_request(scope)
        await asyncio.sleep(0)
        compute(HELD_S)

    async def run() -> None:
        measuring = asyncio.create_task(delay.measure())
        await asyncio.sleep(0.05)
        await asyncio.create_task(hold())
        await asyncio.sleep(0.05)
        measuring.cancel()

    asyncio.run(run())


def test_a_request_that_holds_the_loop_is_named() -> None:
    delay = LoopDelay(tick_s=0.005)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/live/a-secret",
        "route": SimpleNamespace(path="/live/{id}"),
    }
    measured(delay, scope)
    ticks, held = delay.readings()
    (longest,) = (one for one in held if one.cpu_s >= HELD_S)
    assert longest.route == "GET /live/{id}" and longest.seconds >= HELD_S
    assert any(tick.late_s >= HELD_S / 2 and tick.process_cpu_s >= HELD_S for tick in ticks)
    shown = delay.to_json()
    assert shown["held_by"] == "GET /live/{id}" and shown["worst_s"] >= shown["held_s"] >= HELD_S
    assert 0 <= shown["p99_s"] <= shown["worst_s"]


def test_what_a_sender_wrote_is_not_shown() -> None:
    for scope, expected in (
        (None, None),
        ({"method": "GET", "path": "/live/runs/a-secret/x"}, None),
        ({"method": "POST", "path": "/gradio_api/queue/join", FUNCTION: "stop_run"}, "/stop_run"),
    ):
        delay = LoopDelay()
        measured(delay, scope)
        assert delay.to_json()["held_by"] == expected


def test_old_readings_are_forgotten() -> None:
    delay = LoopDelay(tick_s=0.005, window_s=0.03)
    measured(delay, None)
    _, held = delay.readings()
    assert all(one.cpu_s < HELD_S for one in held)
    assert LoopDelay().to_json()["worst_s"] is None
