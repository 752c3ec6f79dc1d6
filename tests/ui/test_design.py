"""All pages share one design: grid, background, radii, navigation, and little space above the content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.made_writer import finished_run, live_run
from tests.ui.conftest import NewPage, wait_until_in_place
from tools import page_driver

pytestmark = pytest.mark.ui

SIZES = {"1440": (1440, 900), "1920": (1920, 1080)}
CARDS = {
    "train": "#command",
    "run": ".ddp-tile",
    "machine": ".ddp-card",
    "queue": ".ddp-card",
    "learn": ".ddp-card",
}
CONTROLS = {"train": "#field-batch_size input", "runs": ".ddp-search", "run": ".ddp-actions .ddp-button"}
# The element with which the content of each page begins.
CONTENT = {
    "learn": ".ddp-lessons",
    "train": ".ddp-presets",
    "runs": ".ddp-list-tools",
    "run": ".ddp-bar",
    "live": ".ddp-bar",
    # The first cards belong to engines that this page does not use.
    "machine": ".ddp-card:visible",
    "queue": ".ddp-card:visible",
}
NUM_LINES_OF_NAVIGATION = """() => {
  const parts = [...document.querySelectorAll(".ddp-nav a, .ddp-nav .ddp-tool")];
  const boxes = parts.map((part) => part.getBoundingClientRect()).filter(({ height }) => height > 0);
  const middles = boxes.map(({ top, bottom }) => (top + bottom) / 2).toSorted((a, b) => a - b);
  return 1 + middles.filter((middle, index) => index > 0 && middle - middles[index - 1] > 8).length;
}"""
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
LEAST_CONTRAST = 4.5  # WCAG 2, AA
CONTRAST_OF_CELLS = """() => {
  const place = document.createElement("div");
  place.className = "ddp";
  document.body.append(place);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return ["ddp-right", "ddp-wrong"].flatMap((kind) =>
    [...Array(11).keys()].map((tenths) => {
      place.innerHTML = `<table class="ddp-confusion"><tr><td class="${kind}">12</td></tr></table>`;
      const cell = place.querySelector("td");
      cell.style.setProperty("--share", tenths / 10);
      const { color, backgroundColor } = getComputedStyle(cell);
      const [low, high] = [luminance(color), luminance(backgroundColor)].toSorted((a, b) => a - b);
      return (high + 0.05) / (low + 0.05);
    }),
  );
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
    ended = finished_run(runs_dir / "ended", 200)
    with (
        live_run(runs_dir / "live", 200) as live,
        page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server,
    ):
        yield Site(server.address, ended.run_id, live.run_id)


@pytest.mark.parametrize(("size", "dark"), [("1440", False), ("1920", True)], ids=["1440", "1920, dark"])
def test_all_pages_have_one_frame(new_page: NewPage, site: Site, size: str, dark: bool) -> None:
    frames: dict[str, Any] = {}
    cards: dict[str, Any] = {}
    controls: dict[str, str] = {}
    page = _window(new_page, site, SIZES[size], dark=dark)
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


@pytest.mark.parametrize("size", [(1024, 768), (390, 844)], ids=["1024", "phone"])
def test_what_is_above_the_content_takes_a_quarter_of_a_small_screen(
    new_page: NewPage, site: Site, size: tuple[int, int]
) -> None:
    page = _window(new_page, site, size)
    for name, address in (site.pages() | {"live": f"{site.address}/run?id={site.live_run_id}"}).items():
        _open(page, address)
        content = page.locator(CONTENT[name]).first
        if name == "train":
            page.locator(".ddp-live-strip").wait_for()  # the banner appears, because a run is live
        top = wait_until_in_place(content)["y"]
        assert top <= size[1] / 4, f"{name}: the content begins at {top} of {size[1]} px"
        assert page.evaluate(NUM_LINES_OF_NAVIGATION) == 1, name
        assert page.evaluate("document.documentElement.scrollWidth") == size[0], name


@pytest.mark.parametrize("size", SIZES)
def test_the_tour_covers_neither_start_nor_what_is_said_of_the_job(
    new_page: NewPage, site: Site, size: str
) -> None:
    page = _window(new_page, site, SIZES[size])
    _open(page, site.address)
    page.locator(".ddp-equation").wait_for()
    tour = wait_until_in_place(page.locator(".ddp-tour"))
    for said in ("#start-button", "#equation", "#memory"):
        box = wait_until_in_place(page.locator(said))
        assert box["y"] + box["height"] <= tour["y"], f"{said} {box} lies under the tour {tour}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_cell_of_a_confusion_matrix_can_be_read(new_page: NewPage, site: Site, dark: bool) -> None:
    page = _window(new_page, site, SIZES["1440"], dark=dark)
    contrasts = page.evaluate(CONTRAST_OF_CELLS)
    assert len(contrasts) == 22
    assert min(contrasts) >= LEAST_CONTRAST, contrasts


def test_what_the_browser_draws_itself_is_dark_in_dark(new_page: NewPage, site: Site) -> None:
    page = _window(new_page, site, SIZES["1440"], dark=True)
    _open(page, site.pages()["runs"])
    scheme = page.locator(".ddp-cell-select input").first.evaluate(
        "(box) => getComputedStyle(box).colorScheme"
    )
    assert scheme == "dark"


def test_a_run_is_printed_whole_and_without_buttons(new_page: NewPage, site: Site) -> None:
    page = _window(new_page, site, SIZES["1440"], dark=True)
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


def _window(new_page: NewPage, site: Site, size: tuple[int, int], *, dark: bool = False) -> Page:
    """Open a window that has visited the site before, so that the font is cached."""
    page = new_page(site.pages()["runs"], width=size[0], height=size[1], dark=dark)
    page.evaluate("document.fonts.load('16px Inter')")
    return page


def _open(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.locator("#ddp-nav-end button").first.wait_for()
    assert page.evaluate("document.fonts.check('16px Inter')"), "the typeface is not there"
