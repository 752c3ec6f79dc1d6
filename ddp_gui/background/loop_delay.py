"""Measures the delay of the event loop, and finds the requests that blocked it.

One loop serves all users, so a callback of one second blocks all of them for one second. The module measures
how late a timer fires, and the duration of each callback with its request.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddp_gui.http.front import Scope

LIMIT_S = 0.05
TICK_S = 0.02
WINDOW_S = 300.0
# Minimum duration of recorded callbacks.
MIN_RECORDED_S = 0.01
# Key in a request's scope: name of the called function.
FUNCTION = "ddp_function"

_request: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("request", default=None)


@dataclass(frozen=True, kw_only=True)
class BlockingCallback:
    """A callback that blocked the loop.

    `cpu_s` is the CPU time of the loop's thread, without waiting for other threads and programs.
    """

    at_s: float
    seconds: float
    cpu_s: float
    route: str | None


@dataclass(frozen=True, kw_only=True)
class Tick:
    """The delay of one timer event, and the CPU time of the entire process since the previous one."""

    at_s: float
    late_s: float
    process_cpu_s: float


class LoopDelay:
    """The delays of one event loop in the last minutes; thread-safe for readers."""

    def __init__(self, tick_s: float = TICK_S, window_s: float = WINDOW_S) -> None:
        self._tick_s = tick_s
        self._window_s = window_s
        self._lock = threading.Lock()
        self._ticks: deque[Tick] = deque()
        self._long_callbacks: deque[BlockingCallback] = deque()

    async def measure(self) -> None:
        """Measure until cancelled, on the running loop."""
        _time_callbacks()
        registration = (threading.get_ident(), self._record)
        _measured_loops.append(registration)
        try:
            while True:
                due, cpu_s = time.monotonic() + self._tick_s, time.process_time()
                await asyncio.sleep(self._tick_s)
                now = time.monotonic()
                self._add(Tick(at_s=now, late_s=now - due, process_cpu_s=time.process_time() - cpu_s))
        finally:
            _measured_loops.remove(registration)

    def to_json(self) -> dict[str, Any]:
        """Return the delays of the last minutes for the Machine page."""
        ticks, callbacks = self.readings()
        late = sorted(tick.late_s for tick in ticks)
        longest = max(callbacks, key=lambda callback: callback.seconds, default=None)
        return {
            "window_s": self._window_s,
            "worst_s": max([*late[-1:], *(callback.seconds for callback in callbacks)], default=None),
            "p99_s": late[len(late) * 99 // 100] if late else None,
            "limit_s": LIMIT_S,
            "held_s": None if longest is None else longest.seconds,
            "held_cpu_s": None if longest is None else longest.cpu_s,
            "held_by": None if longest is None else longest.route,
        }

    def readings(self) -> tuple[list[Tick], list[BlockingCallback]]:
        """Return the ticks and the long callbacks of the last minutes."""
        with self._lock:
            return list(self._ticks), list(self._long_callbacks)

    def forget(self) -> None:
        """Discard all measurements."""
        with self._lock:
            self._ticks.clear()
            self._long_callbacks.clear()

    def _add(self, tick: Tick) -> None:
        with self._lock:
            self._ticks.append(tick)
            for entries in (self._ticks, self._long_callbacks):
                while entries and entries[0].at_s < tick.at_s - self._window_s:
                    entries.popleft()

    def _record(self, seconds: float, cpu_s: float, scope: Scope | None) -> None:
        callback = BlockingCallback(
            at_s=time.monotonic(), seconds=seconds, cpu_s=cpu_s, route=route_of(scope)
        )
        with self._lock:
            self._long_callbacks.append(callback)


# The thread of each measured loop, and a function that records its long callbacks.
_measured_loops: list[tuple[int, Callable[[float, float, Scope | None], None]]] = []


def begin_request(scope: Scope) -> None:
    """Attribute the current context's work to this request."""
    _request.set(scope)


def route_of(scope: Scope | None) -> str | None:
    """Return a request's method and route, without user input; None before the route is known."""
    if scope is None:
        return None
    if FUNCTION in scope:
        return f"/{scope[FUNCTION]}"
    path = getattr(scope.get("route"), "path", None)
    return None if path is None else f"{scope['method']} {path}"


def _time_callbacks() -> None:
    """Measure each callback of asyncio's loops in this process.

    asyncio measures callbacks only in debug mode, which is slow, and only logs them.
    """
    run = asyncio.Handle._run  # noqa: SLF001 - there is no public hook
    if hasattr(run, "is_timed"):
        return

    def timed(self: asyncio.Handle) -> None:
        started_s, cpu_s = time.perf_counter(), time.thread_time()
        run(self)
        seconds = time.perf_counter() - started_s
        if seconds >= MIN_RECORDED_S:
            scope = self._context.get(_request)  # type: ignore[attr-defined]
            for thread, record in _measured_loops:
                if thread == threading.get_ident():
                    record(seconds, time.thread_time() - cpu_s, scope)

    timed.is_timed = True  # type: ignore[attr-defined]
    asyncio.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001
