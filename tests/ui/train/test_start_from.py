"""The form for a run that starts from another run's checkpoint, and the page of that run."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import HAS_ALL, wait_until_finished
from tests.unit.ddp_gui.runs.test_runs import leave_events
from tests.unit.trained_runs import leave_trained_run
from tools.page_driver import Server
from trainers.contract import start_from
from trainers.contract.rundir import RunDirectory


@pytest.fixture(scope="module")
def source(runs_dir: Path) -> RunDirectory:
    made = leave_trained_run(runs_dir, "digits", "cnn", steps=(5, 10), num_epochs=1, batch_size=64)[0]
    leave_events(made)
    return made


def test_a_run_is_trained_further(server: Server, source: RunDirectory, page: Page, runs_dir: Path) -> None:
    page.goto(f"{server.address}/run?id={source.run_id}")
    page.wait_for_function(HAS_ALL)
    page.get_by_label("Checkpoint to take home").select_option("5")
    page.get_by_role("link", name="Train further on other data").click()
    words = page.locator(".ddp-start-from")
    expect(words).to_contain_text(f"Training further from {source.run_id}, step 5.")
    expect(words).to_contain_text(
        "The new run has its own copy of the weights (0.1 MB), so you may delete the other run."
    )
    expect(page.locator("#field-model input")).to_be_disabled()
    page.locator("#field-dataset input").click()
    offered = page.locator("#field-dataset [role=option]")
    labels = [option.get_attribute("aria-label") for option in offered.all()]
    assert labels[0] == "Handwritten digits" and "Fashion-MNIST" in labels and "Two moons" not in labels
    offered.filter(has_text="Fashion-MNIST").click()
    expect(page.locator("#problems")).to_contain_text("inputs of 1 × 8 × 8, but this data has 1 × 28 × 28")
    expect(page.locator("#problems")).to_contain_text(
        "7.weight has shape 128 × 128 and would have shape 128 × 1568"
    )
    page.locator("#field-dataset input").click()
    offered.filter(has_text="Handwritten digits").click()
    expect(words).to_contain_text("has its own copy of the weights")
    page.locator("#start-button").click()
    page.wait_for_url("**/run?id=*")
    page.wait_for_function(HAS_ALL)
    about = page.locator(".ddp-subtitle")
    expect(about).to_contain_text(f"started from run {source.run_id}, step 5")
    expect(about.get_by_role("link", name=source.run_id)).to_be_visible()
    run = RunDirectory(runs_dir / page.url.rpartition("=")[2])
    origin = start_from.read_origin(run)
    assert origin is not None and (origin.run_id, origin.step) == (source.run_id, 5)
    wait_until_finished(run)
    page.reload()
    expect(about).to_contain_text("step 5, with all its weights")
