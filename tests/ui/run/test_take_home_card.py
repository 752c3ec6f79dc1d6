"""The "Use this model" card: the zip with its progress, and the PyTorch code."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import Watched, assert_accessible
from tests.ui.run.test_try_it import HAS_ALL
from tests.unit.ddp_gui.runs.test_runs import leave_events
from tests.unit.trained_runs import leave_trained_run
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory


@pytest.fixture(scope="module")
def run(runs_dir: Path) -> RunDirectory:
    made = leave_trained_run(runs_dir, "digits", "linear", steps=(5, 10))[0]
    leave_events(made)
    return made


def test_a_model_is_packed_and_downloaded_and_its_code_is_shown(
    server: Server, run: RunDirectory, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.wait_for_function(HAS_ALL)
    card = page.locator(".ddp-take-home")
    card.scroll_into_view_if_needed()
    expect(page.get_by_label("Checkpoint to take home")).to_have_value("10")
    page.get_by_role("button", name="Take it home").click()
    expect(card.locator("[role=status]").first).to_contain_text("Packing")
    link = card.get_by_role("link", name="Download step 10")
    expect(link).to_be_visible()
    with page.expect_download() as started:
        link.click()
    assert started.value.suggested_filename == f"{run.run_id}-step-10-model.zip"
    with zipfile.ZipFile(Path(started.value.path())) as archive:
        assert f"{run.run_id}-step-10-model/predict.py" in archive.namelist()
    with page.expect_download() as started:
        page.get_by_role("link", name="Report", exact=True).click()
    report = Path(started.value.path()).read_text()
    assert "<h4>Events</h4>" in report and f"{run.run_id}/events.jsonl" in report
    with page.expect_download() as started:
        page.get_by_role("link", name="Run as a zip").click()
    assert started.value.suggested_filename == f"{run.run_id}-run.zip"
    with zipfile.ZipFile(Path(started.value.path())) as archive:
        assert f"{run.run_id}/checkpoints/step_10/model.safetensors" in archive.namelist()
    card.locator("summary").click()
    expect(card.locator("code")).to_contain_text('torch.export.load("model.pt2")')
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert_accessible(page, ".ddp-take-home")
    assert watched.complaints == [] and watched.foreign_requests == []
