"""Projector mode: readable text, curves and sample on one screen, and two runs side by side."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import Watched
from tests.ui.run import written_runs
from tools.page_driver import Server

SCREEN = (1920, 1080)
LEAST_TEXT_PX = 20
IN_SIGHT = (".ddp-pill", ".ddp-tiles", "[data-chart=loss]", "[data-chart=metric]", ".ddp-sample")
TEXT_SIZES = """(root) => [...root.querySelectorAll(".js-plotly-plot text")]
  .filter((text) => text.textContent.trim() !== "" && text.getBoundingClientRect().width > 0)
  .map((text) => parseFloat(getComputedStyle(text).fontSize))"""
BOXES = """(page, selectors) => selectors.map((selector) => {
  const { left, top, right, bottom } = page.querySelector(selector).getBoundingClientRect();
  return { selector, left, top, right, bottom };
})"""
IS_WHOLE = "(card) => card.scrollHeight <= card.clientHeight + 1 && card.scrollWidth <= card.clientWidth + 1"
DRAWN = """(number) => {
  const charts = document.querySelectorAll("[data-chart=loss] .main-svg, [data-chart=metric] .main-svg");
  return new Set([...charts].map((drawing) => drawing.closest(".ddp-chart"))).size === number;
}"""
# Faster than a browser enters and leaves full screen.
TWICE_F = """() => {
  const press = () => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "f", bubbles: true }));
  press();
  press();
}"""
COUNT_SCREEN_CHANGES = """() => {
  const changes = { count: 0 };
  document.addEventListener("fullscreenchange", () => (changes.count += 1));
  return changes;
}"""
TWICE = """() => {
  const ids = [...document.querySelectorAll("[id^=ddp-]")].map(({ id }) => id);
  return ids.filter((id, index) => ids.indexOf(id) !== index);
}"""


@pytest.fixture(scope="module")
def runs(runs_dir: Path) -> dict[str, str]:
    return {
        "images": written_runs.ended_run(runs_dir / "shown-1", 2000, written_runs.images()).run_id,
        "text": written_runs.ended_run(runs_dir / "shown-2", 3000, written_runs.text()).run_id,
    }


@pytest.fixture
def page(watched: Watched) -> Page:
    watched.page.set_viewport_size({"width": SCREEN[0], "height": SCREEN[1]})
    return watched.page


def boxes(page: Page, number: int) -> list[dict[str, Any]]:
    """Return the boxes of the parts of the n-th run that must be visible without scrolling."""
    found: list[dict[str, Any]] = page.locator(".ddp-run-page").nth(number).evaluate(BOXES, list(IN_SIGHT))
    return found


def test_curves_and_sample_are_on_one_screen(server: Server, runs: dict[str, str], page: Page) -> None:
    page.goto(f"{server.address}/run?id={runs['text']}&projector=1")
    page.wait_for_function(DRAWN, arg=2)
    expect(page.locator(".ddp-sample-images, .ddp-sample-text")).to_be_visible()
    expect(page.locator(".ddp-sample .ddp-caption")).to_have_text(re.compile(r"after step \d[\d,]*[.:]"))
    sizes = page.locator(".ddp-run-page").evaluate(TEXT_SIZES)
    assert len(sizes) > 20
    assert min(sizes) >= LEAST_TEXT_PX
    for box in boxes(page, 0):
        assert box["left"] >= 0 and box["right"] <= SCREEN[0], box
        assert box["top"] >= 0 and box["bottom"] <= SCREEN[1], box
    assert page.locator(".ddp-sample").evaluate(IS_WHOLE), "the sample is seen without scrolling in its card"
    assert page.evaluate("document.documentElement.scrollWidth") == SCREEN[0]


def test_it_fills_the_screen_until_escape(server: Server, runs: dict[str, str], page: Page) -> None:
    page.goto(f"{server.address}/run?id={runs['images']}")
    # A browser that handles Escape itself only reports that full screen has ended.
    for leave in (lambda: page.keyboard.press("Escape"), lambda: page.evaluate("document.exitFullscreen()")):
        page.get_by_role("button", name="Projector").click()
        page.wait_for_function("() => document.fullscreenElement !== null")
        expect(page.locator(".ddp-nav")).to_be_hidden()
        leave()
        page.wait_for_function("() => document.fullscreenElement === null")
        expect(page.locator(".ddp-nav")).to_be_visible()
        assert "projector" not in page.url
    page.keyboard.press("f")
    expect(page.locator(".ddp-logs")).to_be_hidden()
    page.wait_for_function("() => document.fullscreenElement !== null")
    changes = page.evaluate_handle(COUNT_SCREEN_CHANGES)
    page.evaluate(TWICE_F)
    page.wait_for_function("(changes) => changes.count === 2", arg=changes)
    expect(page.locator(".ddp-logs")).to_be_hidden()


def test_two_runs_are_side_by_side_on_one_screen(server: Server, runs: dict[str, str], page: Page) -> None:
    ids = list(runs.values())
    page.goto(f"{server.address}/runs?compare={','.join(ids)}")
    page.get_by_role("link", name="Side by side").click()
    page.wait_for_function(DRAWN, arg=4)
    names = page.locator(".ddp-run-page h1")
    expect(names).to_have_text(["made up, 2000 steps", "made up, 3000 steps"])
    assert min(page.locator(".ddp-side-by-side").evaluate(TEXT_SIZES)) >= LEAST_TEXT_PX
    for number, (left, right) in enumerate([(0, SCREEN[0] / 2), (SCREEN[0] / 2, SCREEN[0])]):
        for box in boxes(page, number):
            assert left <= box["left"] and box["right"] <= right, box
            assert box["top"] >= 0 and box["bottom"] <= SCREEN[1], box
    assert page.evaluate(TWICE) == []
    page.get_by_role("button", name="Full screen").click()
    page.wait_for_function("() => document.fullscreenElement !== null")
    page.keyboard.press("f")
    page.wait_for_function("() => document.fullscreenElement === null")
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.className.includes('projector')") is False
