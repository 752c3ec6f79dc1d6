"""Compare in a real browser: the values of its curves, and two runs on all screen sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from ddp_gui.events.tables import moving_average
from tests import made_up_runs
from tests.ui.conftest import Watched
from tests.ui.run.test_charts import assert_nothing_is_cut_or_covered
from tools import page_driver

NUM_STEPS = 6000
CURVE = """(name) => document.querySelector(`[data-chart=compare-${name}] .js-plotly-plot`)?.data?.[0]"""


@dataclass(frozen=True)
class Shelf:
    address: str
    run_ids: list[str]
    runs_dir: Path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    folder = tmp_path_factory.mktemp("compare") / "runs"
    run_ids = made_up_runs.make(folder, 2, NUM_STEPS)
    with page_driver.serve(folder, page_driver.NO_STANDBY) as server:
        yield Shelf(server.address, run_ids, folder)


def open_compare(page: Page, shelf: Shelf) -> None:
    page.goto(f"{shelf.address}/runs?compare={','.join(shelf.run_ids)}")
    page.wait_for_function(f"() => ({CURVE})('loss')?.y.length > 0")


def test_a_smoothed_curve_has_the_values_of_all_steps_and_not_of_those_drawn(
    shelf: Shelf, watched: Watched
) -> None:
    page, span = watched.page, 300
    open_compare(page, shelf)
    page.get_by_role("group", name="Curves").get_by_role("button", name="throughput").click()
    page.wait_for_function(f"() => ({CURVE})('throughput')?.y.length > 0")
    lines = (shelf.runs_dir / shelf.run_ids[0] / "events.jsonl").read_text().splitlines()
    steps = [event for line in lines if (event := json.loads(line))["kind"] == "step"]
    page.get_by_label("Smoothing", exact=True).select_option("0")
    raw = steps[-1]["samples_per_s"]
    page.wait_for_function(f"(y) => Math.abs(({CURVE})('throughput').y.at(-1) - y) < 0.5", arg=raw)
    page.get_by_label("Smoothing", exact=True).select_option(str(span))
    for name, field in (("throughput", "samples_per_s"), ("loss", "loss")):
        exact = moving_average(np.array([event[field] for event in steps]), span)
        newest = float(exact[-1])
        page.wait_for_function(
            f"([name, y]) => Math.abs(({CURVE})(name).y.at(-1) / y - 1) < 1e-4", arg=[name, newest]
        )
        drawn = page.evaluate(CURVE, name)
        assert len(drawn["x"]) < NUM_STEPS
        assert drawn["y"] == pytest.approx([exact[step - 1] for step in drawn["x"]], rel=1e-4)
    assert watched.complaints == []


def test_both_runs_are_in_sight_on_a_phone(shelf: Shelf, watched: Watched) -> None:
    page, size = watched.page, (390, 844)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    open_compare(page, shelf)
    heads = page.locator(".ddp-compare-table thead th")
    expect(heads).to_have_count(2)
    for head in heads.all():
        box = head.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    page.get_by_role("group", name="Curves").get_by_role("button", name="throughput").click()
    page.wait_for_function(f"() => ({CURVE})('throughput')?.y.length > 0")
    assert_nothing_is_cut_or_covered(page, least_ticks=10)
    assert watched.complaints == []
