"""Recorded steps of a real run: recorded by a click, played by keyboard, and downloaded as a trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Locator, expect

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.ui.conftest import Watched, assert_accessible
from tools.page_driver import Server

LONG = {"dataset": "digits", "model": "mlp", "device": "cpu", "batch_size": 32, "num_epochs": 100_000}
RANKS = ("rank 0", "rank 1")


@pytest.fixture
def run_id(client: Client) -> str:
    """Return the ID of a run of two ranks that trains until it is stopped."""
    started: str = client.predict(LONG, api_name="/start_run")["run_id"]
    return started


def unfold(watched: Watched, name: str) -> Locator:
    fold = watched.page.locator(f"#closer-{name}")
    fold.locator("summary").first.click()
    return fold


def test_a_run_is_recorded_looked_at_and_downloaded(
    server: Server, watched: Watched, client: Client, run_id: str, tmp_path: Path
) -> None:
    page = watched.page
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
    for dark in (False, True):
        page.evaluate("(dark) => document.body.classList.toggle('dark', dark)", dark)
        for theatre in ("#closer-step-theatre", "#closer-all-reduce-theatre"):
            assert_accessible(page, theatre)

    # The recording is also available after the run has ended.
    client.predict(run_id, False, api_name="/stop_run")
    expect(page.locator(".ddp-pill[data-state=stopped]").first).to_be_visible()
    page.reload()
    steps = unfold(watched, "step-theatre")
    expect(steps.locator("svg.ddp-theatre-lanes").get_by_text("rank 1", exact=True)).to_be_visible()
    expect(steps.get_by_role("button", name="Record", exact=True)).to_be_hidden()
    assert watched.complaints == [] and watched.foreign_requests == []
