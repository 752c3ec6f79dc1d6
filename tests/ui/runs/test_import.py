"""A run is downloaded as a zip and imported in a real browser: chosen, or dropped on the list of runs."""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path

from playwright.sync_api import Page, expect

from ddp_gui.runs import imports
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract.rundir import is_run_id

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


def taken_along(page: Page, target: Path) -> Path:
    page.locator(".ddp-more-button").first.click()
    with page.expect_download() as download:
        page.get_by_role("link", name="The whole run, as a zip").click()
    download.value.save_as(target)
    return target


def run_ids(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if is_run_id(path.name)}


def drop(page: Page, *files: Path) -> None:
    box = page.locator(".ddp-list").bounding_box()
    assert box is not None
    at = [box["x"] + box["width"] / 2, box["y"] + min(box["height"], 300) / 2]
    sent = [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in files]
    assert page.evaluate(DROP, [at, sent]), "the browser would open the file instead"


def test_a_run_is_handed_in_or_dropped_on_the_list(
    page: Page, watched: Watched, page_server: Server, shelf: Path, tmp_path: Path
) -> None:
    sent, spoiled = taken_along(page, tmp_path / "sent.zip"), tmp_path / "spoiled.zip"
    before, content = run_ids(shelf), sent.read_bytes()
    middle = len(content) // 2
    spoiled.write_bytes(content[:middle] + bytes(50) + content[middle + 50 :])
    drop(page, spoiled, sent)
    expect(page.get_by_text("spoiled.zip was not imported: the zip cannot be read")).to_be_visible()
    badges = page.locator(".ddp-list-row .ddp-imported")
    expect(badges.filter(has_text="all files as recorded")).to_have_count(1)
    assert len(run_ids(shelf) - before) == 1
    assert list((shelf / imports.FOLDER).iterdir()) == []
    assert len(watched.complaints) == 1, "the browser logs the refusal"
    watched.complaints.clear()

    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(sent, "w") as changed:
        for name in archive.namelist():
            longer = b"\n" if name.endswith("/config.json") else b""
            changed.writestr(name, archive.read(name) + longer)
    page.locator(".ddp-list-title input[type=file]").set_input_files(sent)
    expect(badges.filter(has_text="1 file differs")).to_have_count(1)
    page.goto(f"{page_server.address}/runs?tag=handed+in")
    row = page.locator(".ddp-list-row", has_text="1 file differs")
    row.locator(".ddp-run-name").click()
    expect(page.locator(".ddp-header")).to_contain_text("(config.json differs). It is not continued here.")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
