"""A run is downloaded as a zip and imported in a real browser: chosen, or dropped on the list of runs."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ddp_gui.runs import imports
from tests import made_up_runs
from tests.ui.conftest import Watched
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import is_run_id

pytestmark = pytest.mark.ui

# Drags files over the middle of the list and drops them; returns whether the page takes files there.
DROP = """([at, files]) => {
  const given = new DataTransfer();
  for (const [name, content] of files)
    given.items.add(new File([Uint8Array.from(atob(content), (byte) => byte.charCodeAt(0))], name));
  const sent = (kind) => document.elementFromPoint(...at).dispatchEvent(
    new DragEvent(kind, { dataTransfer: given, bubbles: true, cancelable: true }));
  const isTaken = !sent("dragover");
  return !sent("drop") && isTaken;
}"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import") / "runs"
    made_up_runs.make(folder, 1, 20)
    return folder


@pytest.fixture(scope="module")
def page_server(runs: Path) -> Iterator[Server]:
    with page_driver.serve(runs, page_driver.NO_STANDBY) as served:
        yield served


def taken_along(page: Page, target: Path) -> Path:
    """Download the run at the head of the list as a zip."""
    page.locator(".ddp-more-button").first.click()
    with page.expect_download() as download:
        page.get_by_role("link", name="The whole run, as a zip").click()
    download.value.save_as(target)
    return target


def run_ids(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if is_run_id(path.name)}


def drop(page: Page, *files: Path) -> None:
    """Drop files on the list of runs."""
    box = page.locator(".ddp-list").bounding_box()
    assert box is not None
    at = [box["x"] + box["width"] / 2, box["y"] + min(box["height"], 300) / 2]
    sent = [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in files]
    assert page.evaluate(DROP, [at, sent]), "the browser would open the file instead"


def test_a_run_is_taken_along_and_handed_in(watched: Watched, page_server: Server, tmp_path: Path) -> None:
    page = watched.page
    page.goto(f"{page_server.address}/runs")
    sent = taken_along(page, tmp_path / "sent.zip")
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
    expect(badge).to_have_text("1 file differs")
    page.goto(f"{page_server.address}/runs?tag=handed+in")
    row = page.locator(".ddp-list-row")
    expect(row).to_have_count(1)
    row.locator(".ddp-run-name").click()
    expect(page.locator(".ddp-header")).to_contain_text("(config.json differs). It is not continued here.")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    assert watched.complaints == []


def test_zips_are_dropped_on_the_list_and_damaged_ones_leave_nothing(
    watched: Watched, page_server: Server, runs: Path, tmp_path: Path
) -> None:
    page = watched.page
    page.goto(f"{page_server.address}/runs")
    whole = taken_along(page, tmp_path / "whole.zip")
    rows = page.locator(".ddp-list-row")
    num_before, before = rows.count(), run_ids(runs)
    content = whole.read_bytes()
    middle = len(content) // 2
    half, spoiled = tmp_path / "half.zip", tmp_path / "spoiled.zip"
    half.write_bytes(content[:middle])
    spoiled.write_bytes(content[:middle] + bytes(50) + content[middle + 50 :])
    drop(page, half, spoiled, whole)
    for name in (half.name, spoiled.name):
        expect(page.get_by_text(f"{name} was not imported: the zip cannot be read")).to_be_visible()
    badges = page.locator(".ddp-list-row .ddp-imported")
    expect(badges.filter(has_text="all files as recorded")).to_have_count(1)
    expect(rows).to_have_count(num_before + 1)
    expect(page.get_by_role("button", name="Import a run")).to_be_enabled()
    assert len(run_ids(runs) - before) == 1
    assert list((runs / imports.FOLDER).iterdir()) == []
    assert len(watched.complaints) == 2, "the browser logs each refusal"
