"""The examples of docs/adding.md on the page: form, description, chart and insight of added plug-ins."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from gradio_client import Client
from playwright.sync_api import expect

from ddp_gui.train.form import TOPIC_TITLES
from tests import adding
from tests.ui.conftest import ENDLESS, Watched, kill_runs
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.config import settings

SENTENCE = "After backward, gradients are averaged piece by piece; no rank computes during this time."


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve the page of a copy of the repository with all examples."""
    root = adding.copy_with_examples(tmp_path_factory.mktemp("copy"))
    runs_dir, port = root / "runs", page_driver.free_port()
    options = ["--no-browser", "--port", str(port), "--runs-dir", str(runs_dir), page_driver.NO_STANDBY]
    with page_driver.serve_command([sys.executable, str(root / "app.py"), *options], port) as server:
        yield server
        kill_runs(runs_dir)


def test_the_form_and_a_run_s_page_have_what_was_added(copied: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(copied.address)
    page.wait_for_selector(".ddp-equation")
    watched.wait_until_answered()
    page.get_by_role("button", name=TOPIC_TITLES["parallel"]).click()
    expect(page.get_by_label("Piece, MB")).to_be_hidden()
    expect(page.get_by_label(settings()["bucket_cap_mb"].label)).to_be_visible()
    page.get_by_label("Strategy", exact=True).click()
    page.get_by_role("option", name="Manual averaging").click()
    expect(page.get_by_label("Piece, MB")).to_be_visible()
    expect(page.get_by_label(settings()["bucket_cap_mb"].label)).to_be_hidden()
    watched.wait_until_answered()
    page.get_by_label("Piece, MB").fill("0")
    page.get_by_label("Piece, MB").blur()
    said = page.get_by_label("This cannot be started")
    expect(said).to_contain_text("Piece, MB: 0 is not possible. Allowed: a whole number from 1 to 4,096.")

    values = {"model": "two_layers", "dataset": "outliers", "strategy": "by_hand", "by_hand.piece_mb": 2}
    client = Client(copied.address, verbose=False)
    started = client.predict(ENDLESS | values | {"batch_size": 2}, api_name="/start_run")
    page.goto(f"{copied.address}/run?id={started['run_id']}")
    expect(page.locator(".ddp-ranks .ddp-caption").first).to_contain_text(SENTENCE)
    expect(page.locator("[data-chart=metric] h3")).to_have_text("Validation RMSE")
    expect(page.locator("[data-code=tiny_batch]")).to_contain_text("Each rank sees 2 samples a step")
    expect(page.locator("[data-chart=loss] .ytitle")).to_have_text("loss (Huber loss)")
    chart = page.locator("[data-chart=step_time]")
    chart.scroll_into_view_if_needed()
    expect(chart.locator("h3")).to_have_text("Time of a step")
    expect(chart.locator(".ytitle")).to_have_text("seconds")
    expect(chart.locator(".scatterlayer .js-line")).to_have_count(1)
    page.get_by_text("All settings", exact=True).click()
    expect(
        page.locator("[aria-labelledby*=configuration]").get_by_text("by_hand.piece_mb").last
    ).to_be_visible()
