"""Serve the page and drive it in a real Chromium, for the UI tests, the benchmarks and the screenshots."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

REPOSITORY = Path(__file__).resolve().parent.parent
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_OPTIONS = (
    "--no-sandbox",
    # A test pattern in place of a camera.
    "--use-fake-device-for-media-stream",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Long, because only failures take this time.
SERVE_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0
PAGE_TIMEOUT_MS = 180_000
BROWSER_TIMEOUT_MS = 120_000
# The system assigns ephemeral ports from 32768, so it never assigns one of these before the page binds it.
PORTS = range(20_000, 32_000)
# For pages whose form is shown while the machine is needed for other work.
NO_STANDBY = "--no-standby"
# Costs a frame per update, so only for measurements.
TIMES_FRAMES = "window.ddpTimesFrames = true"


@dataclass
class Server:
    """A running page: its address, its process, and the seconds until it answered."""

    address: str
    process: subprocess.Popen[bytes]
    served_after_s: float


def find_browser() -> str | None:
    """Return the path of an installed Chromium or Chrome, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, BROWSER_NAMES)), None)


def _browser_path() -> str:
    path = find_browser()
    if path is None:
        raise RuntimeError("no Chromium found: install the package chromium, or set CHROMIUM to its path")
    return path


def free_port() -> int:
    """Return a port on which no process listens."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables until the block ends, such as those with which a page finds a cluster."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def serve(
    runs_dir: Path,
    *options: str,
    port: int | None = None,
    timeout_s: float = SERVE_TIMEOUT_S,
    program: Sequence[str] = ("app.py",),
) -> Iterator[Server]:
    """Run `app.py` with a runs directory until the block ends. Its runs continue, as they do for a user.

    Args:
        program: Arguments of Python that replace `app.py`.
    """
    port = port or free_port()
    command = [sys.executable, *program, "--no-browser", "--port", str(port), "--runs-dir", str(runs_dir)]
    command += options
    with serve_command(command, port, timeout_s=timeout_s) as server:
        yield server


@contextlib.contextmanager
def serve_command(
    command: list[str], port: int, first_path: str = "", timeout_s: float = SERVE_TIMEOUT_S
) -> Iterator[Server]:
    """Run a command that serves a page on a local port until the block ends.

    Args:
        first_path: path that answers when the page is ready; with logins, the login page.

    Raises:
        RuntimeError: the page does not answer in time.
    """
    started = time.monotonic()
    # The server's output goes to stderr, because a benchmark's stdout is only JSON.
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_until_answered(f"{address}/{first_path}", process, timeout_s)
        yield Server(address=address, process=process, served_after_s=time.monotonic() - started)
    finally:
        _end(process)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a headless Chromium.

    Raises:
        RuntimeError: no Chromium is installed.
    """
    path = _browser_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=list(BROWSER_OPTIONS), timeout=BROWSER_TIMEOUT_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_profile() -> Iterator[BrowserContext]:
    """Start a headless Chromium with a profile on disk, whose cache holds scripts and their compiled code.

    A new context compiles them again: the page of a run then takes 3.3 s of CPU time instead of 1.4 s.

    Raises:
        RuntimeError: no Chromium is installed.
    """
    path = _browser_path()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=path,
            args=list(BROWSER_OPTIONS),
            timeout=BROWSER_TIMEOUT_MS,
            viewport={"width": 1440, "height": 900},
        )
        context.set_default_timeout(PAGE_TIMEOUT_MS)
        try:
            yield context
        finally:
            context.close()


def open_page(
    browser: Browser,
    address: str,
    *,
    width: int = 1440,
    height: int = 900,
    dark: bool = False,
    times_frames: bool = False,
) -> Page:
    """Open an address in a new window of this size.

    `times_frames` records the frame in which each point appears.
    """
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    if times_frames:
        page.add_init_script(TIMES_FRAMES)
    page.goto(address)
    return page


def _wait_until_answered(
    address: str, process: subprocess.Popen[bytes], timeout_s: float = SERVE_TIMEOUT_S
) -> None:
    deadline = time.monotonic() + timeout_s
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nothing answers at {address} (exit code {process.poll()})")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as response:  # nosec B310
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == HTTPStatus.UNAUTHORIZED  # the page is up and requires a login
    except (urllib.error.URLError, OSError):
        return False
