"""A run is downloaded as a zip and imported in a real browser."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests import made_up_runs
from tests.ui.conftest import Watched
from tools import page_driver
from tools.page_driver import Server

pytestmark = pytest.mark.ui


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("import") / "runs"
    made_up_runs.make(folder, 1, 20)
    with page_driver.serve(folder, page_driver.NO_STANDBY) as served:
        yield served


def test_a_run_is_taken_along_and_handed_in(watched: Watched, page_server: Server, tmp_path: Path) -> None:
    page = watched.page
    page.goto(f"{page_server.address}/runs")
    page.locator(".ddp-more-button").first.click()
    with page.expect_download() as download:
        page.get_by_role("link", name="The whole run, as a zip").click()
    sent = tmp_path / "sent.zip"
    download.value.save_as(sent)
    with zipfile.ZipFile(io.BytesIO(sent.read_bytes())) as archive, zipfile.ZipFile(sent, "w") as changed:
        for name in archive.namelist():
            longer = b"\n" if name.endswith("/config.json") else b""
            changed.writestr(name, archive.read(name) + longer)

    (tmp_path / "none.zip").write_bytes(b"no zip")
    page.locator(".ddp-list-title input[type=file]").set_input_files(tmp_path / "none.zip")
    expect(page.get_by_text("none.zip was not imported: the zip cannot be read")).to_be_visible()
    watched.complaints.clear()  # the browser logs each refusal
    page.locator(".ddp-list-title input[type=file]").set_input_files(sent)
    badge = page.locator(".ddp-list-row .ddp-imported")
    expect(badge).to_have_text("imported: 1 file differs")
    page.goto(f"{page_server.address}/runs?tag=handed+in")
    row = page.locator(".ddp-list-row")
    expect(row).to_have_count(1)
    row.locator(".ddp-run-name").click()
    expect(page.locator(".ddp-header")).to_contain_text("(config.json differs). It is not continued here.")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    assert watched.complaints == []
