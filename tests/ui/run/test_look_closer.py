"""The "Look closer" panel: who saw what, a slowed and a killed rank, and recorded steps."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gradio_client import Client
from playwright.sync_api import Locator, Page, expect

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Start, Watched, assert_usable_on_a_phone
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

DELAY_MS = 200
RANKS = ("rank 0", "rank 1")


def test_one_sample_is_found_in_who_saw_what(server: Server, ended: RunDirectory, page: Page) -> None:
    page.goto(f"{server.address}/run?id={ended.run_id}#closer-who-saw-what")
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
    assert_usable_on_a_phone(page, "#closer-who-saw-what")
    expect(page.locator("#closer-slow-rank")).to_be_hidden()  # an ended run offers nothing that changes it


def test_a_rank_is_slowed_down_and_killed(server: Server, client: Client, page: Page, start: Start) -> None:
    run = start(checkpoint_every_steps=20, eval_every_steps=10**6)
    page.goto(f"{server.address}/run?id={run.run_id}#closer-slow-rank")
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
    assert_usable_on_a_phone(page, "#closer-slow-rank")

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
    client.predict(run.run_id, False, api_name="/stop_run")


def unfold(watched: Watched, name: str) -> Locator:
    fold = watched.page.locator(f"#closer-{name}")
    fold.locator("summary").first.click()
    return fold


def test_a_recording(server: Server, watched: Watched, client: Client, start: Start, tmp_path: Path) -> None:
    page, run_id = watched.page, start().run_id
    page.goto(f"{server.address}/run?id={run_id}")
    steps = unfold(watched, "step-theatre")
    expect(steps.get_by_text("No step has been recorded yet.")).to_be_visible()
    expect(steps.get_by_role("button", name="Record", exact=True)).to_be_enabled()
    steps.get_by_label("steps to record").fill("2")
    steps.get_by_role("button", name="Record", exact=True).click()

    # The lanes, and the same data as a table.
    lanes = steps.locator("svg.ddp-theatre-lanes")
    for rank in RANKS:
        expect(lanes.get_by_text(rank, exact=True)).to_be_visible()
    for kind in ("forward", "backward", "reduce"):
        assert lanes.locator(f"rect.ddp-theatre-{kind}").count() >= len(RANKS)
    table = steps.get_by_role("region", name=re.compile("Seconds of each part, mean of 2 steps"))
    expect(table.get_by_role("row")).to_have_count(1 + len(RANKS))
    expect(table).to_contain_text(re.compile(r"\d (µs|ms)"))
    expect(steps.get_by_text("read the same clock")).to_be_visible()
    expect(steps.locator(".ddp-theatre-overlap")).to_contain_text("0%")

    # The keyboard moves between span boundaries; the current spans are announced.
    slider = steps.get_by_role("slider")
    slider.focus()
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"^0 µs\. rank 0: "))
    seen = set()
    for _ in range(40):
        page.keyboard.press("ArrowRight")
        seen.update(re.findall(r": ([a-z ]+)", slider.get_attribute("aria-valuetext") or ""))
    assert {"forward", "backward", "optimizer"} <= seen, seen
    moved = int(slider.input_value())
    page.keyboard.press("ArrowLeft")
    wait_until("the slider going back", lambda: int(slider.input_value()) < moved, ANSWER_TIMEOUT_S)
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    expect(steps.get_by_role("button", name="Pause")).to_be_visible()
    wait_until("it being played", lambda: int(slider.input_value()) > 0, ANSWER_TIMEOUT_S)
    page.keyboard.press("Space")
    expect(steps.get_by_role("button", name="Play")).to_be_visible()

    # The trace for Perfetto.
    with page.expect_download() as downloading:
        steps.get_by_role("link", name="Download for Perfetto").click()
    path = tmp_path / "trace.json"
    downloading.value.save_as(path)
    trace = json.loads(path.read_text(encoding="utf-8"))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {span["pid"] for span in spans} == {0, 1}
    assert all(isinstance(span[name], int | float) for span in spans for name in ("ts", "dur", "pid", "tid"))
    assert {"data", "forward", "backward", "optimizer", "bucket 0"} <= {span["name"] for span in spans}

    # The all-reduce of a bucket, from the same recording.
    rounds = unfold(watched, "all-reduce-theatre")
    expect(rounds.get_by_text("Through shared memory:")).to_be_visible()
    expect(
        rounds.get_by_text(re.compile(r"^Round 1 of \d+, .*writes its piece.*Measured: rank 0"))
    ).to_be_visible()
    rounds.get_by_role("button", name="Next").click()
    expect(rounds.get_by_text(re.compile(r"^Round 1 of .*waits until"))).to_be_visible()
    rounds.get_by_role("slider").press("End")
    expect(rounds.get_by_text("Every rank has the complete sum")).to_be_visible()
    for theatre in ("#closer-step-theatre", "#closer-all-reduce-theatre"):
        assert_usable_on_a_phone(page, theatre)

    # The recording is also available after the run has ended.
    client.predict(run_id, False, api_name="/stop_run")
    expect(page.locator(".ddp-pill[data-state=stopped]").first).to_be_visible()
    page.reload()
    steps = unfold(watched, "step-theatre")
    expect(steps.locator("svg.ddp-theatre-lanes").get_by_text("rank 1", exact=True)).to_be_visible()
    expect(steps.get_by_role("button", name="Record", exact=True)).to_be_hidden()
