"""The legend of the validation chart lists the same trivial predictor and linear model as the route."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import expect

from tests.harness import END_TIMEOUT_S, wait_until
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

CONFIG = {"dataset": "iris", "model": "linear", "device": "cpu", "nproc_per_node": 1}
# The page polls every 5 s; the fitting process starts Python and torch at the lowest priority.
FITTED_TIMEOUT_MS = 600_000


def test_the_legend_has_the_trivial_predictor_and_the_linear_model(
    client: Client, runs_dir: Path, server: Server, watched: Watched
) -> None:
    run = RunDirectory(runs_dir / client.predict(CONFIG, api_name="/start_run")["run_id"])
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    watched.page.goto(f"{server.address}/run?id={run.run_id}")
    watched.page.locator("[data-chart=metric]").scroll_into_view_if_needed()
    legend = watched.page.locator("[data-chart=metric] .legendtext")
    expect(legend.filter(has_text="logistic regression")).to_have_count(1, timeout=FITTED_TIMEOUT_MS)
    shown = dict(
        re.fullmatch(r"(.*): (\d+\.\d)%", text).groups()  # type: ignore[union-attr]
        for text in legend.all_text_contents()
        if ":" in text
    )
    answer = watched.page.request.get(f"{server.address}/live/runs/{run.run_id}/references").json()
    assert answer["is_complete"]
    assert shown == {line["label"]: f"{100 * line['value']:.1f}" for line in answer["lines"]}
    assert shown["always the most frequent class"] == "33.3"
    assert float(shown["logistic regression, same split"]) == pytest.approx(96.7, abs=3.4), "one flower of 30"
