"""The charts of a run: messages in empty charts, and text that is neither cut off nor overlapping."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.made_run import live_run
from tests.ui.conftest import Start, wait_until_finished
from tests.ui.run import written_runs
from tools.page_driver import Server

SIZES = {"1024": (1024, 768), "phone": (390, 844)}
# Evaluated in the page: the text in and above each drawn chart, with its position.
WRITTEN = """() => [...document.querySelectorAll(".ddp-chart:has(.main-svg)")].map((chart) => {
  const box = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { words: element.textContent, left, top, right, bottom };
  };
  const isWritten = (element) => element.textContent.trim() !== "";
  const all = (selector) => [...chart.querySelectorAll(selector)].filter(isWritten).map(box);
  return {
    name: chart.dataset.chart,
    plot: box(chart.querySelector(".ddp-plot")),
    title: all("h3"),
    controls: [...chart.querySelectorAll("select")].map(box),
    axes: all(".xtitle, .ytitle, .g-xtitle text, .g-ytitle text"),
    ticks: all(".xtick text, .ytick text"),
    legend: all(".legendtext"),
  };
})"""
# Line boxes extend above and below the glyphs.
LINE_GAP_PX = 2


ENDED, DIVERGED, NEVER_DRAWN = "charts-1", "charts-2", "charts-3"


@pytest.fixture(scope="module", autouse=True)
def _runs(runs_dir: Path) -> None:
    written_runs.ended_run(runs_dir / ENDED, 2000, written_runs.images())
    written_runs.diverged_run(runs_dir / DIVERGED, num_finite=9, num_steps=60)
    written_runs.diverged_run(runs_dir / NEVER_DRAWN, num_finite=0, num_steps=60)


def overlaps(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(
        min(one["right"], other["right"]) - max(one["left"], other["left"]) > LINE_GAP_PX
        and min(one["bottom"], other["bottom"]) - max(one["top"], other["top"]) > LINE_GAP_PX
    )


def is_inside(one: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(
        one["left"] >= outer["left"] - 1
        and one["right"] <= outer["right"] + 1
        and one["top"] >= outer["top"] - 1
        and one["bottom"] <= outer["bottom"] + 1
    )


def assert_nothing_is_cut_or_covered(page: Page, *, least_ticks: int) -> None:
    """Check that no text of the drawn charts is cut off or overlaps other text."""
    page.evaluate("document.fonts.ready")
    charts = page.evaluate(WRITTEN)
    assert sum(len(chart["ticks"]) for chart in charts) > least_ticks
    for chart in charts:
        parts = [*chart["axes"], *chart["legend"]]
        assert not [tick for tick in chart["ticks"] if tick["right"] == 0], "a label is hidden"
        for part in [*parts, *chart["ticks"]]:
            assert is_inside(part, chart["plot"]), (chart["name"], part, chart["plot"])
        others = [*chart["ticks"], *chart["title"], *chart["controls"]]
        for index, part in enumerate(parts):
            for other in [*parts[index + 1 :], *others]:
                assert not overlaps(part, other), (chart["name"], part, other)
        for title in chart["title"]:
            assert not [control for control in chart["controls"] if overlaps(title, control)]
    cut = page.locator(".ddp-chart h3").evaluate_all(
        "(titles) => titles.filter((title) => title.scrollWidth > title.clientWidth).length"
    )
    assert cut == 0


@pytest.mark.parametrize("size", SIZES)
def test_no_word_of_a_chart_is_cut_or_lies_over_another(server: Server, page: Page, size: str) -> None:
    page.set_viewport_size({"width": SIZES[size][0], "height": SIZES[size][1]})
    for run_id, num_charts in ((ENDED, 5), (DIVERGED, 3)):
        page.goto(f"{server.address}/run?id={run_id}")
        # Charts outside the viewport are also drawn once.
        drawn = "(number) => document.querySelectorAll('.ddp-chart:has(.main-svg)').length === number"
        page.wait_for_function(drawn, arg=num_charts)
        assert_nothing_is_cut_or_covered(page, least_ticks=5 * num_charts)
    page.goto(f"{server.address}/runs?compare={ENDED},{DIVERGED}")
    page.get_by_role("group", name="Curves").get_by_role("button", name="throughput").click()
    page.wait_for_function("() => document.querySelectorAll('.ddp-chart:has(.main-svg)').length === 2")
    assert_nothing_is_cut_or_covered(page, least_ticks=10)
    heads = page.locator(".ddp-compare-table thead th")
    expect(heads).to_have_count(2)
    box = heads.last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= SIZES[size][0], "both runs are in sight"


def test_a_loss_of_nan_is_said_in_the_state_and_in_empty_charts(server: Server, page: Page) -> None:
    page.goto(f"{server.address}/run?id={DIVERGED}")
    expect(page.locator(".ddp-pill")).to_have_text("finished, loss is NaN")
    empty = page.locator("[data-chart=grad_norm] .ddp-plot-empty")
    expect(empty).to_be_visible()
    expect(empty).to_contain_text("the loss is NaN (not a number), and the gradient norm with it")
    expect(page.locator("[data-chart=loss] .ddp-plot-empty")).to_be_hidden()
    expect(page.locator("[data-chart=metric] .ddp-plot-empty")).to_contain_text("before its first evaluation")
    page.goto(f"{server.address}/run?id={NEVER_DRAWN}")
    never = page.locator("[data-chart=loss] .ddp-plot-empty")
    expect(never).to_contain_text("from the first step on")
    expect(never).to_be_visible()
    page.goto(f"{server.address}/runs")
    expect(page.locator(f'[data-run="{DIVERGED}"] .ddp-cell-loss')).to_have_text("NaN")


def test_an_empty_chart_says_when_an_evaluation_comes(server: Server, runs_dir: Path, page: Page) -> None:
    held: list[Route] = []
    page.route("**/live/plotly.min.js*", lambda route: held.append(route))  # the plotting library is loading
    page.goto(f"{server.address}/run?id={ENDED}", wait_until="commit")
    expect(page.locator(".ddp-pill")).to_have_text("finished")
    empty = page.locator("[data-chart=metric] .ddp-plot-empty")
    expect(empty).to_have_text("")
    for route in held:
        route.continue_()
    expect(empty).to_be_hidden()
    expect(page.locator("[data-chart=metric] .main-svg").first).to_be_visible()
    page.unroute("**/live/plotly.min.js*")
    with live_run(runs_dir / "charts-4", 5) as live:
        page.goto(f"{server.address}/run?id={live.run_id}")
        # At 4 steps per second, most of the 23 steps of an epoch are still to come.
        expect(empty).to_have_text(
            re.compile(r"^First evaluation after epoch \d+, in (a moment|about \d+ s)\.$")
        )


# The page polls every 5 s; the fitting process starts Python and torch at the lowest priority.
FITTED_TIMEOUT_MS = 600_000


def test_the_legend_has_the_reference_lines(start: Start, server: Server, page: Page) -> None:
    run = start(dataset="iris", model="linear", nproc_per_node=1, batch_size=4, num_epochs=30)
    wait_until_finished(run)
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.locator("[data-chart=metric]").scroll_into_view_if_needed()
    legend = page.locator("[data-chart=metric] .legendtext")
    expect(legend.filter(has_text="logistic regression")).to_have_count(1, timeout=FITTED_TIMEOUT_MS)
    shown = dict(
        re.fullmatch(r"(.*): (\d+\.\d)%", text).groups()  # type: ignore[union-attr]
        for text in legend.all_text_contents()
        if ":" in text
    )
    answer = page.request.get(f"{server.address}/live/runs/{run.run_id}/references").json()
    assert answer["is_complete"]
    assert shown == {line["label"]: f"{100 * line['value']:.1f}" for line in answer["lines"]}
    assert shown["always the most frequent class"] == "33.3"
    assert float(shown["logistic regression, same split"]) == pytest.approx(96.7, abs=3.4), "one flower of 30"
