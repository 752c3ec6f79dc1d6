"""A served page over a fresh runs directory, and a real Chromium to look at it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gradio_client import Client
from playwright.sync_api import Browser, Page, expect

from tests.harness import processes_of
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

LOCAL = ("http://127.0.0.1", "data:", "blob:")
# Two cores serve the page, train and draw; only what fails waits so long.
expect.set_options(timeout=60_000)


# Playwright keeps an event loop running in the thread that uses it: no other test may meet it.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if page_driver.find_browser() is None:
        reason = "no Chromium on this machine: the ui tests did not run (install the package chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with page_driver.open_browser() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one runs directory of the shared server; a test ends its own runs, or `no_run_left` does."""
    return tmp_path_factory.mktemp("page") / "runs"


@pytest.fixture(autouse=True)
def no_run_left(runs_dir: Path) -> Iterator[None]:
    yield
    kill_runs(runs_dir)


def kill_runs(runs_dir: Path) -> None:
    """Kill whatever a test left running."""
    for path in runs_dir.iterdir() if runs_dir.is_dir() else []:
        for process in processes_of(RunDirectory(path)):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself at this moment
                process.kill()


@pytest.fixture(scope="session")
def server(runs_dir: Path) -> Iterator[Server]:
    with page_driver.serve(runs_dir, page_driver.NO_STANDBY) as served:
        yield served


@pytest.fixture(scope="session")
def client(server: Server) -> Client:
    return Client(server.address, verbose=False)


class Watched:
    """A page with everything it asked of the network and complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self._complain(message.text)

    def _complain(self, words: str) -> None:
        # Gradio gives up its own request when the page is left, and says so.
        if "AbortError" not in words:
            self.complaints.append(words)

    @property
    def foreign_requests(self) -> list[str]:
        """The requests to any host but our own."""
        return [url for url in self.requests if not url.startswith(LOCAL)]


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(60_000)
    yield Watched(page)
    page.close()
