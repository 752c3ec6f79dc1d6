"""Fixtures of the tests of the runs page: synthetic runs, and their list in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests import made_up_runs
from tests.ui.conftest import Watched
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

HOSTILE = "<img src=x onerror=alert(1)>"
NUM_RUNS = 30


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a separate runs directory with synthetic runs; the last one has a hostile name."""
    folder = tmp_path_factory.mktemp("shelf") / "runs"
    newest = made_up_runs.make(folder, NUM_RUNS, 130)[-1]
    config = RunDirectory(folder / newest).config
    config.write_text(json.dumps(json.loads(config.read_text()) | {"name": HOSTILE}))
    return folder


@pytest.fixture(scope="module")
def page_server(shelf: Path) -> Iterator[Server]:
    with page_driver.serve(shelf, page_driver.NO_STANDBY) as served:
        yield served


@pytest.fixture
def page(watched: Watched, page_server: Server) -> Iterator[Page]:
    watched.page.goto(f"{page_server.address}/runs")
    expect(watched.page.locator(".ddp-list-row").first).to_be_visible()
    # On its first start, a server reads the runs incrementally.
    expect(watched.page.get_by_text("Reading runs for the first time")).to_be_hidden()
    yield watched.page
    assert watched.page.locator("img[src=x]").count() == 0
