"""A deliberately broken run is marked wherever it is shown, and its replicas are seen to diverge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from tests.made_run import make_finished
from tests.unit.checkpoints import leave_checkpoint
from tools import page_driver
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.files import json_files

NUM_STEPS = 400
MISTAKE = "no_gradient_averaging"
BADGE = re.compile("broken on purpose: Gradients are not averaged")


@dataclass(frozen=True)
class Shelf:
    address: str
    right: str
    broken: str


def with_fingerprints(run: RunDirectory, *, are_apart: bool, **values: object) -> str:
    """Add fingerprint events to a run, and values to its configuration."""
    raw = json.loads(run.config.read_text()) | {"nproc_per_node": 2, **values}
    json_files.write_json_atomically(run.config, raw)
    file = EventFile(run.events)
    for number in range(50, NUM_STEPS + 1, 50):
        hashes = [f"{number:016x}", f"{number + are_apart:016x}"]
        fields = {"step": number, "hashes": hashes, "distances": [0.0, number / 1000 * are_apart]}
        file.append([(time.time(), "fingerprints", fields)])
    file.close()
    return run.run_id


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    folder = tmp_path_factory.mktemp("broken") / "runs"
    folder.mkdir()
    right = with_fingerprints(make_finished(RunDirectory(folder / "right-1"), NUM_STEPS), are_apart=False)
    broken = make_finished(RunDirectory(folder / "broken-1"), NUM_STEPS)
    leave_checkpoint(broken, NUM_STEPS)
    with_fingerprints(broken, are_apart=True, mistake=MISTAKE)
    with page_driver.serve(folder, page_driver.NO_STANDBY) as server:
        yield Shelf(server.address, right, broken.run_id)


def open_run(page: Page, shelf: Shelf, run_id: str, more: str = "") -> None:
    page.goto(f"{shelf.address}/run?id={run_id}{more}")
    expect(page.locator(".ddp-replicas").first).to_contain_text("replicas")


def test_a_runs_page_says_that_it_is_broken_and_gives_its_weights_to_nobody(shelf: Shelf, page: Page) -> None:
    open_run(page, shelf, shelf.broken)
    expect(page.locator(".ddp-header .ddp-broken")).to_have_text(BADGE)
    expect(page.locator(".ddp-replicas")).to_have_text("replicas differ since step 50")
    fold = page.locator("#closer-fingerprints")
    fold.locator("summary").click()
    expect(fold.locator(".ddp-fingerprints-sentence")).to_contain_text("after step 50")
    expect(fold.locator("tbody tr").nth(1).locator(".ddp-hash-1")).to_have_count(8)
    page.wait_for_function(
        "() => document.querySelector('[data-chart=fingerprints] .js-plotly-plot')?.data?.length === 2"
    )
    drawn = page.evaluate("document.querySelector('[data-chart=fingerprints] .js-plotly-plot').data[1].y")
    assert drawn == [number / 1000 for number in range(50, NUM_STEPS + 1, 50)]
    expect(page.locator(".ddp-checkpoints")).to_contain_text("No download: this run was broken on purpose")
    expect(page.locator(".ddp-checkpoints a")).to_have_count(0)

    ask, routes = page.context.request, f"{shelf.address}/live/runs"
    refused = ask.get(f"{routes}/{shelf.broken}/checkpoints/{NUM_STEPS}/download")
    assert refused.status == 409
    assert MISTAKE in refused.json()["detail"]
    assert "its model is not useful" in refused.json()["detail"]
    exported = ask.get(f"{routes}/{shelf.broken}/export.json")
    assert exported.json()["broken_on_purpose"]["name"] == MISTAKE
    headers = ask.get(f"{routes}/{shelf.broken}/export.tfevents").headers
    assert f"broken-on-purpose.{shelf.broken}" in headers["content-disposition"]
    assert ask.get(f"{routes}/{shelf.right}/export.json").json()["broken_on_purpose"] is None


def test_lists_have_the_badge_and_run_again_leaves_the_mistake_out(shelf: Shelf, page: Page) -> None:
    page.goto(f"{shelf.address}/runs")
    row = page.locator(f".ddp-list-row[data-run={shelf.broken}]")
    expect(row.locator(".ddp-broken")).to_have_text("broken on purpose")
    expect(page.locator(".ddp-list-row .ddp-broken")).to_have_count(1)
    page.goto(f"{shelf.address}/runs?compare={shelf.right},{shelf.broken}")
    expect(page.locator(".ddp-compare-table thead .ddp-broken")).to_have_text(BADGE)
    open_run(page, shelf, shelf.broken, f"&beside={shelf.right}")
    expect(page.locator(".ddp-header .ddp-broken")).to_have_count(1)
    page.goto(f"{shelf.address}/?from={shelf.broken}")
    said = page.locator("#changes .ddp-changes")
    expect(said).to_contain_text("Broken on purpose Gradients are not averaged → none")
    expect(said).to_contain_text("This form does not contain the mistake")
