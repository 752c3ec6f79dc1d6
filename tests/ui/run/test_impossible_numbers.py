"""Impossible times, sizes and numbers in a copied run: the page shows everything else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Watched
from tests.unit.ddp_gui.runs.test_runs import make_run
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory

HUGE = 1e300
STEP = {"kind": "step", "epoch": 0, "loss": 1.0, **dict.fromkeys(("lr", "grad_norm", "samples_per_s"), 0.1)}
STEP |= {"step_time_s": 1.0, "data_time_s": 0.0}
WARNING = {"kind": "warning", "message": "seen at the end", "code": "x", "hint": ""}
WARNING |= {"rank": None, "traceback": ""}
SAVED = {"kind": "checkpoint", "path": "x", "write_s": -HUGE}


def happened(time: float) -> list[dict[str, Any]]:
    """Return events that a damaged file may contain, all at the given time."""
    found = [
        {"kind": "state", "state": "running", "reason": ""},
        *(STEP | {"step": step} for step in range(1, 20)),
        STEP | {"step": 20, "samples_per_s": HUGE, "lr": -HUGE, "grad_norm": HUGE},
        {"kind": "eval", "step": 20, "epoch": 0, "loss": HUGE, "metrics": {"accuracy": HUGE, "rmse": -HUGE}},
        SAVED | {"step": 2**60, "removed": [2**60], "size_bytes": 2**62, "stall_s": -1.0, "reason": ""},
        SAVED | {"step": 1, "removed": [], "size_bytes": -5, "stall_s": HUGE, "reason": "end"},
        {"kind": "command", "id": "a", "name": "", "accepted": True, "message": "nameless", "step": 1},
        WARNING,
    ]  # fmt: skip
    return [{"seq": seq, "time_unix_s": time} | event for seq, event in enumerate(found)]


@pytest.fixture
def run(runs_dir: Path) -> Iterator[RunDirectory]:
    """Yield a run without events. It is removed afterwards, because its times would sort it before all
    others.
    """
    made = make_run(runs_dir)
    yield made
    shutil.rmtree(made.path)


@pytest.mark.parametrize("time", [HUGE, -1.0])
def test_a_page_stands_whatever_is_said(server: Server, page: Page, run: RunDirectory, time: float) -> None:
    run.events.write_text("".join(json.dumps(event) + "\n" for event in happened(time)))
    assert any(event["kind"] == "warning" for event in events.read_all(run.events))
    page.goto(f"{server.address}/run?id={run.run_id}")
    expect(page.locator(".ddp-events-list")).to_contain_text("seen at the end")
    expect(page.locator(".ddp-events-list")).to_contain_text("nameless")
    expect(page.locator(".ddp-card-failed")).to_have_count(0)
    page.goto(f"{server.address}/runs")
    expect(page.locator("body")).to_contain_text(run.run_id)


def test_a_card_that_fails_stops_no_other(server: Server, watched: Watched, run: RunDirectory) -> None:
    run.events.write_text("".join(json.dumps(event) + "\n" for event in happened(1e9)))
    page = watched.page

    def damage(route: Any) -> None:
        message = route.fetch().json()
        message["confusion"], message["sample"] = {"matrix": 5}, {"kind": 7, "tokens": 3}
        route.fulfill(json=message)

    page.route(re.compile(r"/stream\?"), lambda route: route.abort())
    page.route(re.compile(r"/poll\?"), damage)
    page.goto(f"{server.address}/run?id={run.run_id}")
    failed = page.locator(".ddp-card-failed")
    expect(failed.first).to_contain_text("This part cannot be shown")
    expect(page.locator(".ddp-events-list")).to_contain_text("seen at the end")
    watched.complaints.clear()  # the browser logs the aborted stream and the failed card
