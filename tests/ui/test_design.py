"""All pages have one design: the same grid, background, radii and place of the navigation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from benchmarks.made_writer import finished_run, live_run
from tools import page_driver

pytestmark = pytest.mark.ui

SIZES = {"1440": (1440, 900), "1920": (1920, 1080)}
CARDS = {"train": ".gr-accordion", "run": ".ddp-tile", "machine": ".ddp-card", "queue": ".ddp-card"}
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
        """Return the address of each page."""
        return {
            "train": self.address,
            "runs": f"{self.address}/runs",
            "run": f"{self.address}/run?id={self.ended_run_id}",
            "machine": f"{self.address}/machine",
            "queue": f"{self.address}/queue",
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    runs_dir = tmp_path_factory.mktemp("design")
    ended = finished_run(runs_dir / "ended", 200)
    with (
        live_run(runs_dir / "live", 200) as live,
        page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server,
    ):
        yield Site(server.address, ended.run_id, live.run_id)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_all_pages_have_one_frame(browser: Browser, site: Site, size: str, dark: bool) -> None:
    frames: dict[str, Any] = {}
    cards: dict[str, Any] = {}
    controls: dict[str, str] = {}
    with _window(browser, site, SIZES[size], dark=dark) as page:
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


@contextlib.contextmanager
def _window(browser: Browser, site: Site, size: tuple[int, int], *, dark: bool = False) -> Iterator[Page]:
    """Open a window that has been to the site before: it has the typeface from the first moment."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(page_driver.PAGE_TIMEOUT_MS)
    page = context.new_page()
    page.goto(site.pages()["runs"])
    page.evaluate("document.fonts.load('16px Inter')")
    yield page
    context.close()


def _open(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.locator("#ddp-nav-end button").first.wait_for()
    assert page.evaluate("document.fonts.check('16px Inter')"), "the typeface is not there"
