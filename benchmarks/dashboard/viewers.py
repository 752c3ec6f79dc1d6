"""Thirty viewers of one run: what they cost the server, how late each is, and one who never reads.

Twenty-nine read the stream over plain connections from one asyncio loop and note when a message has arrived
whole; the thirtieth is a real browser. Then the same again beside a client with a tiny receive buffer that
asks for the stream and never reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from playwright.sync_api import Page

from benchmarks.dashboard.browsing import drawn, new_page, open_run
from benchmarks.dashboard.latency import latencies_ms
from benchmarks.machine import CpuMeter, percentile, resident_mb, spread
from benchmarks.made_writer import live_run
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

NUM_VIEWERS = 30
SETTLE_S = 5.0
TINY_BUFFER_BYTES = 2_048
CUT_OFF_TIMEOUT_S = 120.0

Seen = list[tuple[int, float]]


def measure(seconds: float, num_steps: int) -> dict[str, Any]:
    """Return the figures of a run with so many steps, watched for so long without and with the stuck one."""
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        with (
            page_driver.serve(runs_dir) as server,
            live_run(runs_dir / "watched", num_steps) as run,
            page_driver.open_browser() as browser,
        ):
            page = new_page(browser)
            open_run(page, server.address, run.run_id)
            alone = _watch(server, run, page, seconds)
            with _stuck_client(server, run) as port:
                asked_at = time.monotonic()
                beside = _watch(server, run, page, seconds)
                cut_off_after_s = _wait_for_cut_off(server, port, asked_at)
    return {
        "steps": num_steps,
        "viewers": NUM_VIEWERS,
        "watched_s": seconds,
        "all_reading": alone,
        "beside_one_who_never_reads": {**beside, "cut_off_after_s": cut_off_after_s},
    }


def _watch(server: Server, run: RunDirectory, page: Page, seconds: float) -> dict[str, Any]:
    """Read with every client for so long, then ask the browser what it has drawn."""
    address = f"{server.address}/live/runs/{run.run_id}/stream?since=-1"
    with ThreadPoolExecutor(1) as pool:
        # In a thread: Playwright has an event loop of its own in this one.
        reading = pool.submit(asyncio.run, _read_all(server.process.pid, address, seconds))
        began, until, cpu_percent, seen_by_each = reading.result()
    page.wait_for_timeout(500)
    seen_by_each.append(drawn(page))
    delays = [latencies_ms(run, seen, began, until) for seen in seen_by_each]
    return {
        "server_cpu_percent": cpu_percent,
        "server_resident_mb": resident_mb(server.process.pid),
        "event_to_arrival_ms": spread([delay for viewer in delays[:-1] for delay in viewer]),
        "slowest_viewer_p95_ms": round(max(percentile(viewer, 0.95) for viewer in delays[:-1]), 1),
        "browser_event_to_pixel_ms": spread(delays[-1]),
    }


async def _read_all(server_pid: int, address: str, seconds: float) -> tuple[float, float, float, list[Seen]]:
    """Return the time span that counts, the server's load in it, and what each client saw when."""
    seen_by_each: list[Seen] = [[] for _ in range(NUM_VIEWERS - 1)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as client, asyncio.TaskGroup() as group:  # noqa: S113
        readers = [group.create_task(read_stream(client, address, seen)) for seen in seen_by_each]
        await asyncio.sleep(SETTLE_S)
        began, cpu = time.time(), CpuMeter(server_pid)
        await asyncio.sleep(seconds)
        until, cpu_percent = time.time(), cpu.percent()
        # What happened just before the end has time to arrive.
        await asyncio.sleep(0.5)
        for reader in readers:
            if reader.done():
                raise RuntimeError("a viewer's stream ended before its time")
            reader.cancel()
    return began, until, cpu_percent, seen_by_each


async def read_stream(client: httpx.AsyncClient, address: str, seen: Seen) -> None:
    """Read a run's stream without end; note each message's cursor and when it had arrived whole, in ms."""
    async with client.stream("GET", address) as response:
        response.raise_for_status()
        cursor = -1
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                cursor = int(line.removeprefix("id: "))
            elif line == "" and cursor >= 0:
                seen.append((cursor, time.time() * 1000))


@contextlib.contextmanager
def _stuck_client(server: Server, run: RunDirectory) -> Iterator[int]:
    """Ask for the stream and never read; gives the port it asks from."""
    host = urlsplit(server.address)
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TINY_BUFFER_BYTES)
        stuck.connect((host.hostname, host.port))
        stuck.sendall(
            f"GET /live/runs/{run.run_id}/stream?since=-1 HTTP/1.1\r\nHost: {host.netloc}\r\n\r\n".encode()
        )
        yield int(stuck.getsockname()[1])


def _wait_for_cut_off(server: Server, port: int, asked_at: float) -> float | None:
    """Return how long the server kept its end of the connection; None when it never let go of it."""
    process = psutil.Process(server.process.pid)
    while time.monotonic() - asked_at < CUT_OFF_TIMEOUT_S:
        if not any(link.raddr and link.raddr.port == port for link in process.net_connections("tcp")):
            return round(time.monotonic() - asked_at, 1)
        time.sleep(0.2)
    return None
