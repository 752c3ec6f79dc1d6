"""All pages share one design: grid, background, radii and navigation; a run is printed whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.made_run import live_run, make_finished
from tests.ui.conftest import NewPage
from tools import page_driver
from trainers.contract.rundir import RunDirectory

pytestmark = pytest.mark.ui

CARDS = {
    "train": "#command",
    "run": ".ddp-tile",
    "machine": ".ddp-card",
    "queue": ".ddp-card",
    "learn": ".ddp-card",
}
CONTROLS = {"train": "#field-batch_size input", "runs": ".ddp-search", "run": ".ddp-actions .ddp-button"}
FRAME = """() => {
  const box = (selector) => {
    const found = document.querySelector(selector);
    if (!found) throw new Error(selector);
    return found.getBoundingClientRect();
  };
  const [brand, nav, first, last] = [".ddp-brand", ".ddp-nav", ".ddp-nav a", "#ddp-nav-end button"].map(box);
  const title = document.querySelector("h1");
  const content = box(".gradio-container main > .column, .ddp-own-page main > div");
  return {
    margin: brand.x,
    navigation: [nav.y, nav.bottom, first.x, first.y, first.width, first.height, last.right, last.y],
    content: [content.x, content.right],
    background: getComputedStyle(document.body).backgroundColor,
    colour: getComputedStyle(title).color,
    title: [title.getBoundingClientRect().x, getComputedStyle(title).fontSize],
    typeface: getComputedStyle(title).fontFamily,
  };
}"""
BOX = """(element) => {
  const { borderRadius, backgroundColor, borderTopColor } = getComputedStyle(element);
  return [borderRadius, backgroundColor, borderTopColor];
}"""
RADIUS = "(element) => getComputedStyle(element).borderRadius"


@dataclass(frozen=True)
class Site:
    address: str
    ended_run_id: str
    live_run_id: str

    def pages(self) -> dict[str, str]:
        """Return the URL of each page."""
        return {
            "train": self.address,
            "runs": f"{self.address}/runs",
            "run": f"{self.address}/run?id={self.ended_run_id}",
            "machine": f"{self.address}/machine",
            "queue": f"{self.address}/queue",
            "learn": f"{self.address}/learn",
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    runs_dir = tmp_path_factory.mktemp("design")
    ended = make_finished(RunDirectory(runs_dir / "ended"), 200)
    with (
        live_run(runs_dir / "live", 200) as live,
        page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server,
    ):
        yield Site(server.address, ended.run_id, live.run_id)


def test_all_pages_have_one_frame(new_page: NewPage, site: Site) -> None:
    frames: dict[str, Any] = {}
    cards: dict[str, Any] = {}
    controls: dict[str, str] = {}
    page = _window(new_page, site, dark=True)
    for name, address in site.pages().items():
        _open(page, address)
        frames[name] = page.evaluate(FRAME)
        if name in CARDS:
            cards[name] = page.locator(CARDS[name]).first.evaluate(BOX)
        if name in CONTROLS:
            controls[name] = page.locator(CONTROLS[name]).first.evaluate(RADIUS)
    assert all(frame == frames["runs"] for frame in frames.values()), frames
    assert all(card == cards["run"] for card in cards.values()), cards
    assert len(set(controls.values())) == 1, controls


def test_a_run_is_printed_whole_and_without_buttons(new_page: NewPage, site: Site) -> None:
    page = _window(new_page, site, dark=True)
    _open(page, site.pages()["run"])
    page.wait_for_function("() => document.querySelectorAll('.ddp-plot .main-svg').length > 0")
    page.locator(".ddp-log").evaluate("(log) => log.append('a line\\n'.repeat(500))")
    page.emulate_media(media="print")
    tabs = page.locator(".ddp-tabs button").count()
    # Evaluated in one call: parts of the page that arrive later would change the indices of the buttons.
    shown = page.locator("button:not([data-term], td button), select, input").evaluate_all(
        """(controls) => controls
          .filter((control) => control.checkVisibility({visibilityProperty: true}))
          .map((control) => control.outerHTML)"""
    )
    assert [re.sub("<.*?>", "", button) for button in shown] == ["rank 0"], shown
    assert tabs > 1
    log = page.locator(".ddp-log")
    assert log.evaluate("(log) => log.scrollHeight <= log.clientHeight"), "no line is cut off"
    # Evaluated in one call, as for printing: no chart is redrawn for the narrower page.
    charts = page.evaluate("""() => {
      dispatchEvent(new Event("beforeprint"));
      document.body.style.width = "700px";
      return [...document.querySelectorAll(".ddp-chart:has(.main-svg)")].map((chart) => {
        const box = chart.getBoundingClientRect();
        const drawn = [...chart.querySelectorAll(".main-svg .gridlayer path, .main-svg .xtick")];
        const right = Math.max(...drawn.map((each) => each.getBoundingClientRect().right));
        return [getComputedStyle(chart).breakInside, box.left, right, box.right];
      });
    }""")
    assert charts
    for break_inside, left, drawn_to, right in charts:
        assert break_inside == "avoid"
        assert left < drawn_to <= right
    white = page.locator(".ddp-tile").first.evaluate("(tile) => getComputedStyle(tile).backgroundColor")
    assert white == "rgb(255, 255, 255)"


def _window(new_page: NewPage, site: Site, *, dark: bool = False) -> Page:
    """Open a window that has visited the site before, so that the font is cached."""
    page = new_page(site.pages()["runs"], width=1440, height=900, dark=dark)
    page.evaluate("document.fonts.load('16px Inter')")
    return page


def _open(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.locator("#ddp-nav-end button").first.wait_for()
    assert page.evaluate("document.fonts.check('16px Inter')"), "the typeface is not there"
