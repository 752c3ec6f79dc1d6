"""The "Look closer" panel in a browser: links to a section, who saw what, a slowed and a killed rank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import END_TIMEOUT_S, START_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Watched, assert_accessible
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

RUN = {"dataset": "digits", "model": "mlp", "device": "cpu", "nproc_per_node": 2, "batch_size": 32}
PHONE = {"width": 390, "height": 844}
DELAY_MS = 200


@pytest.fixture(scope="module")
def ended_run(server: Server, client: Client, runs_dir: Path) -> str:
    """Return the ID of a finished run of three epochs."""
    del server
    run_id: str = client.predict({**RUN, "num_epochs": 3}, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    wait_until("the end", lambda: liveness.read_status(run).state in events.ENDED_STATES, END_TIMEOUT_S)
    return run_id


def assert_nothing_sticks_out(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_address_opens_who_saw_what_and_one_sample_is_found_in_it(
    server: Server, ended_run: str, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{server.address}/run?id={ended_run}#closer-who-saw-what")
    fold = page.locator("#closer-who-saw-what")
    expect(fold).to_have_attribute("open", "")
    expect(fold).to_be_in_viewport()
    expect(fold).to_contain_text("Every sample is seen exactly once in this epoch, by one rank.")
    expect(fold).to_contain_text("Steps 1–23: 2 ranks × 32 samples = 64 samples a step")
    expect(fold).not_to_contain_text("paler", use_inner_text=True)

    grid, readout = fold.get_by_role("application"), fold.locator(".ddp-who-readout")
    grid.focus()
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(re.compile(r"^Samples 0–5, step 1: "))
    page.keyboard.press("Enter")
    expect(fold.locator(".ddp-who-columns")).to_have_text("sample 0sample 59")
    fold.get_by_text("The picture as a table").click()
    rows = fold.locator(".ddp-who-table tbody tr")
    expect(rows.first).to_be_visible()  # the toggle event follows the click
    cells = [int(number) for row in rows.all() for number in re.findall(r"\d+", row.inner_text())[1:]]
    assert sorted(cells) == list(range(60)), "each sample is one rank's, at one step"
    row, rank = next(
        (row, rank)
        for row in rows.all()
        for rank, cell in enumerate(row.locator("td").all_inner_texts())
        if "7" in cell.split(" · ")
    )
    fold.get_by_role("spinbutton", name="Follow sample").fill("7")
    fold.get_by_role("button", name="Through all epochs").click()
    way = fold.locator(".ddp-who-way tbody tr")
    expect(way).to_have_count(3)
    expect(way.first).to_contain_text(f"rank {rank}")
    assert way.first.locator("td").first.inner_text() == row.locator("th").inner_text()

    fold.get_by_label("Columns are").select_option(label="the order of this epoch")
    expect(fold.locator(".ddp-who-columns")).to_contain_text("place 1,436")
    fold.get_by_role("spinbutton", name="Epoch").fill("2")
    page.keyboard.press("Enter")
    expect(fold).to_contain_text("Steps 24–46")
    assert_accessible(page, "#closer-who-saw-what")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert_nothing_sticks_out(page)
    assert not watched.complaints and not watched.foreign_requests


def test_an_ended_run_offers_nothing_that_changes_it(
    server: Server, ended_run: str, watched: Watched
) -> None:
    page = watched.page
    page.goto(f"{server.address}/run?id={ended_run}#closer-slow-rank")
    expect(page.locator("#closer-who-saw-what")).to_be_visible()
    expect(page.locator("#closer-slow-rank")).to_be_hidden()


def test_rank_is_slowed_down_then_killed_and_the_run_goes_on(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    config = {**RUN, "num_epochs": 100_000, "checkpoint_every_steps": 20, "eval_every_steps": 10**6}
    run_id = client.predict(config, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    page = watched.page
    page.goto(f"{server.address}/run?id={run_id}#closer-slow-rank")
    fold = page.locator("#closer-slow-rank")
    expect(fold).to_have_attribute("open", "")
    slider = fold.get_by_label("Milliseconds that rank 1 sleeps in each step")
    expect(slider).to_be_enabled()
    slider.fill(str(DELAY_MS))
    expect(fold.locator(".ddp-slow-cost")).to_contain_text(f"rank 1 sleeps {DELAY_MS} ms")
    first = fold.locator(".ddp-rank-times").first
    expect(first).to_have_text(re.compile(r"^waits (1[89]\d|[2-9]\d\d)(\.\d+)? ms of a step of"))
    expect(page.locator(".ddp-insights")).to_contain_text(f"A user lets rank 1 sleep {DELAY_MS} ms")
    expect(page.locator(".ddp-events")).to_contain_text("Slow a rank down: Rank 1 sleeps")
    assert_accessible(page, "#closer-slow-rank")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert_nothing_sticks_out(page)

    wait_until("a checkpoint", run.list_checkpoints, START_TIMEOUT_S)
    fold.get_by_role("button", name="Kill rank 1").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("so the run fails")
    dialog.get_by_role("button", name="Kill rank 1").click()
    expect(page.locator(".ddp-pill").first).to_have_text("failed")
    expect(page.locator(".ddp-run-page")).to_contain_text("Rank 1 was killed (SIGKILL), as requested")
    expect(slider).to_be_disabled()
    fold.get_by_role("button", name="Resume").click()
    expect(page.locator(".ddp-pill").first).to_have_text("running")
    expect(slider).to_have_value("0")
    states = [event["state"] for event in all_events(run) if event["kind"] == "state"]
    assert states == ["starting", "running", "failed", "starting", "running"]
    client.predict(run_id, False, api_name="/stop_run")
    assert not watched.complaints
