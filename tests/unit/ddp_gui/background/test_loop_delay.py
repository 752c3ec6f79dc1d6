"""Tests of the event loop's delay, which is measured with the request that caused it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ddp_gui.background import loop_delay
from ddp_gui.background.loop_delay import FUNCTION, LoopDelay

HELD_S = 0.08


def compute(seconds: float) -> None:
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


def test_what_a_sender_wrote_is_not_shown() -> None:
    for scope, expected in (
        (None, None),
        ({"method": "GET", "path": "/live/runs/a-secret/x"}, None),
        ({"method": "POST", "path": "/gradio_api/queue/join", FUNCTION: "stop_run"}, "/stop_run"),
    ):
        delay = LoopDelay()
        measured(delay, scope)
        assert delay.to_json()["held_by"] == expected
