"""Fixtures of the UI tests: a served page over a fresh runs directory, and a real Chromium."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from gradio_client import Client
from playwright.sync_api import (
    Browser,
    BrowserContext,
    FloatRect,
    Locator,
    Page,
    Request,
    ViewportSize,
    expect,
)

from tests import torch_template
from tests.harness import ANSWER_TIMEOUT_S, END_TIMEOUT_S, wait_until
from tools import page_driver
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.machine import processes

Start = Callable[..., RunDirectory]
ServePage = Callable[..., Server]
NewContext = Callable[..., BrowserContext]
# Trains until it is stopped.
ENDLESS = {
    "dataset": "digits",
    "model": "mlp",
    "device": "cpu",
    "nproc_per_node": 2,
    "batch_size": 32,
    "num_epochs": 100_000,
}
PHONE: ViewportSize = {"width": 390, "height": 844}
# Before that, the page of a finished run is hidden and ignores keys.
HAS_ALL = "() => document.querySelector('.ddp-run-page:not(.ddp-awaits-all)') !== null"
LOCAL = ("http://127.0.0.1", "data:", "blob:")
STILL_MS = 250
STORED = "cookies,indexeddb,local_storage,service_workers,cache_storage"
# Upper bound that only failing tests reach: two possibly shared cores serve the page, train and draw.
expect.set_options(timeout=page_driver.PAGE_TIMEOUT_MS)


# Playwright keeps an event loop running in its thread. Package scope keeps it away from other tests.
@pytest.fixture(scope="package")
def profile() -> Iterator[BrowserContext]:
    """Return the browser profile whose cache most tests share; `watched` clears all other data in it."""
    if page_driver.find_browser() is None:
        reason = "no Chromium on this machine: the ui tests did not run (install the package chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with page_driver.open_profile() as context:
        yield context


@pytest.fixture(scope="package")
def browser(profile: BrowserContext) -> Browser:
    """Return the browser, for contexts with other options. Their cache is empty, which costs CPU time."""
    assert profile.browser is not None
    return profile.browser


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs directory of the shared server. A test ends its own runs; `no_run_left` kills the
    others.
    """
    return tmp_path_factory.mktemp("page") / "runs"


@pytest.fixture(autouse=True)
def no_run_left(runs_dir: Path) -> Iterator[None]:
    yield
    kill_runs(runs_dir)


def kill_runs(runs_dir: Path) -> None:
    """Kill all runs that a test has left running, in one pass over all processes."""
    paths = {str(path) for path in runs_dir.iterdir()} if runs_dir.is_dir() else set()
    for process in psutil.process_iter() if paths else []:
        with contextlib.suppress(psutil.NoSuchProcess):  # the process has just ended
            output = processes.output_of(process.pid)
            is_output = output is not None and {str(output.parent.parent), str(output)} & paths
            if is_output or not paths.isdisjoint(process.cmdline()):
                process.kill()


@pytest.fixture(scope="session")
def server(runs_dir: Path) -> Iterator[Server]:
    """Serve the page that most tests share."""
    with serve(runs_dir) as served:
        yield served


@contextlib.contextmanager
def serve(runs_dir: Path, *options: str) -> Iterator[Server]:
    """Serve a page with these options, whose runs are forked from this pytest worker's template."""
    with contextlib.ExitStack() as stack:
        with page_driver.variables_set({torch_template.ADDRESS: torch_template.address()}):
            page = page_driver.serve(runs_dir, page_driver.NO_STANDBY, *options, program=torch_template.PAGE)
            served = stack.enter_context(page)
        yield served


@pytest.fixture(scope="session")
def client(server: Server) -> Client:
    return Client(server.address, verbose=False)


@pytest.fixture(scope="session")
def start(client: Client, runs_dir: Path) -> Start:
    """Return a function that starts a run of the shared page: an endless one, changed by its arguments."""

    def start_one(**values: Any) -> RunDirectory:
        return RunDirectory(runs_dir / client.predict(ENDLESS | values, api_name="/start_run")["run_id"])

    return start_one


def wait_until_finished(run: RunDirectory) -> None:
    """Wait until a run ends, and check that it was trained to its end."""
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error


@pytest.fixture(scope="session")
def ended(start: Start) -> RunDirectory:
    """Return a finished run of two ranks and three epochs, with checkpoints and evaluations."""
    run = start(num_epochs=3, name="the ended one")
    wait_until_finished(run)
    return run


class Watched:
    """A page that records all its requests and errors."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._under_way: set[Request] = set()
        page.on("request", self._begin)
        for over in ("requestfinished", "requestfailed"):
            page.on(over, lambda request: self._under_way.discard(request))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)

    def _begin(self, request: Request) -> None:
        self.requests.append(request.url)
        if request.method == "POST" or "/queue/data" in request.url:
            self._under_way.add(request)

    def wait_until_answered(self) -> None:
        """Wait until the form has received all responses and sends no further requests.

        A late response would overwrite values entered in the meantime.
        """
        two_frames = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        num_quiet = 0

        def is_quiet() -> bool:
            nonlocal num_quiet
            self.page.evaluate(two_frames)
            num_quiet = 0 if self._under_way else num_quiet + 1
            return num_quiet == 3

        wait_until("the answers to all that the form has asked", is_quiet, ANSWER_TIMEOUT_S)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    @property
    def foreign_requests(self) -> list[str]:
        """Return the requests to hosts other than this one."""
        return [url for url in self.requests if not url.startswith(LOCAL)]


def wait_until_in_place(element: Locator) -> FloatRect:
    """Return the position of an element once it no longer moves."""
    boxes: list[FloatRect | None] = [None]

    def is_in_place() -> bool:
        boxes.append(element.bounding_box())
        element.page.wait_for_timeout(STILL_MS)
        return boxes[-1] is not None and boxes[-1] == element.bounding_box()

    wait_until("it being in its place", is_in_place, ANSWER_TIMEOUT_S)
    assert boxes[-1] is not None
    return boxes[-1]


def drag_over(area: Locator) -> None:
    """Drag the pointer from 30% to 60% of the width of an area, which zooms a chart."""
    box = wait_until_in_place(area)
    middle = box["y"] + 0.5 * box["height"]
    area.page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    area.page.mouse.down()
    area.page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    area.page.mouse.up()


# In the middle of a transition a text has neither its old nor its new contrast.
TRANSITIONS_END = """() => Promise.allSettled(document.getAnimations()
    .filter((each) => each.effect.getComputedTiming().endTime !== Infinity)
    .map((each) => each.finished))"""


def assert_accessible(page: Page, context: str | None = None) -> None:
    """Check that axe finds nothing on the page or within a selector; name each element with the reason."""
    page.evaluate(TRANSITIONS_END)
    options = {"resultTypes": ["violations"]}
    found: list[dict[str, Any]] = Axe().run(page, context, options).response["violations"]
    words = [page.url]
    for violation in found:
        words.append(f"{violation['id']} ({violation['impact']}): {violation['help']} {violation['helpUrl']}")
        for node in violation["nodes"]:
            words.append(f"  {' '.join(map(str, node['target']))}\n    {node['html'][:200]}")
            words.extend(f"    {line}" for line in node["failureSummary"].splitlines()[1:])
    assert not found, "\n".join(words)


def assert_usable(page: Page, context: str | None = None) -> None:
    """Check that everybody can use the page, and that it is not wider than its window."""
    assert_accessible(page, context)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page.url


def assert_usable_on_a_phone(page: Page, context: str | None = None) -> None:
    """Check the page in the window of a phone, in the light and in the dark theme."""
    page.set_viewport_size(PHONE)
    page.emulate_media(reduced_motion="reduce")
    for dark in (False, True):
        page.evaluate("(dark) => document.body.classList.toggle('dark', dark)", dark)
        assert_usable(page, context)


class NewPage(Protocol):
    """Open a page with these settings, with an address or blank."""

    def __call__(
        self, address: str = "", *, width: int = 1440, height: int = 900, dark: bool = False
    ) -> Page: ...


@pytest.fixture
def new_page(profile: BrowserContext) -> Iterator[NewPage]:
    """Return a function that opens pages of the shared profile, in which nothing is stored but the cache."""

    def open_one(address: str = "", *, width: int = 1440, height: int = 900, dark: bool = False) -> Page:
        page = profile.new_page()
        page.set_default_timeout(page_driver.PAGE_TIMEOUT_MS)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        if address:
            page.goto(address)
        return page

    yield open_one
    close_pages(profile)


@pytest.fixture
def new_context(browser: Browser) -> Iterator[NewContext]:
    """Return a function that starts a browser with these options, for another user or offline."""
    with contextlib.ExitStack() as stack:

        def open_one(**options: Any) -> BrowserContext:
            context = stack.enter_context(browser.new_context(**options))
            context.add_init_script("localStorage.setItem('ddp:tour', '\"seen\"')")
            context.set_default_timeout(page_driver.PAGE_TIMEOUT_MS)
            return context

        yield open_one


@pytest.fixture
def serve_page() -> Iterator[ServePage]:
    """Return a function that serves another page until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda runs_dir, *options: stack.enter_context(
            page_driver.serve(runs_dir, page_driver.NO_STANDBY, *options)
        )


@pytest.fixture
def watched(serve_page: ServePage, new_page: NewPage) -> Iterator[Watched]:
    """Return a page that may not have logged an error or asked another host for anything at the end."""
    del serve_page  # the page is closed before its server ends
    watched = Watched(new_page())
    yield watched
    watched.page.unroute_all(behavior="wait")  # pending requests would fail in the next test
    assert watched.complaints == []
    assert watched.foreign_requests == []


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


def close_pages(profile: BrowserContext) -> None:
    """Close all pages of the profile and clear all that they have stored, except the cache."""
    blank, *pages = profile.pages
    for page in pages:
        page.close()
    session = profile.new_cdp_session(blank)
    session.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": STORED})
    session.detach()
    profile.clear_cookies()
    profile.clear_permissions()
