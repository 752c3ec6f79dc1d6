"""All pages: axe-core finds no violations in any look, they share one design, and a run is printed whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as NotInTime

from ddp_gui.http import shell
from tests.made_run import live_run, make_finished
from tests.ui.conftest import PHONE, NewPage, assert_usable
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

# Each page shows a loading message until its content arrives.
HAS_LOADED = "() => [...document.querySelectorAll('.ddp-loading')].every((waiting) => waiting.hidden)"
OTHER_PAGES = (
    *(path for path, *_ in (*shell.PAGES, shell.QUEUE_PAGE, shell.SCRIPT_PAGE)),
    "runs?bin=1",
    "runs?compare=ended,live",
)
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a page with a live and an ended run, which are called so."""
    runs_dir = tmp_path_factory.mktemp("accessible")
    make_finished(RunDirectory(runs_dir / "ended"), 1_000)
    with live_run(runs_dir / "live", 1_000), page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server:
        yield server


def test_the_first_page(new_page: NewPage, site: Server) -> None:
    page = _open(new_page, site.address)
    page.locator(".ddp-equation").wait_for()
    _see_the_skip_link(page)
    # Include the content of closed sections.
    closed = page.locator("button.label-wrap:not(.open)")
    while closed.count() > 0:
        closed.first.click()
    _assert_usable(page)


@pytest.mark.parametrize("which", ["live", "ended"])
def test_a_run_s_page(new_page: NewPage, site: Server, which: str) -> None:
    page = _open(new_page, f"{site.address}/run?id={which}")
    page.wait_for_function("() => (window.ddpDrawLog || []).length > 0")
    _see_the_skip_link(page)
    _assert_usable(page)


@pytest.mark.parametrize(("more", "num_runs"), [("projector=1", 1), ("beside=live", 2)])
def test_a_projector_s_pages(new_page: NewPage, site: Server, more: str, num_runs: int) -> None:
    page = _open(new_page, f"{site.address}/run?id=ended&{more}")
    drawn = "(number) => document.querySelectorAll('[data-chart=loss] .main-svg').length >= number"
    page.wait_for_function(drawn, arg=num_runs)
    wait_until_still(page)
    assert_usable(page)


@pytest.mark.parametrize("path", OTHER_PAGES)
def test_every_other_page(new_page: NewPage, site: Server, path: str) -> None:
    page = _open(new_page, f"{site.address}/{path}")
    _see_the_skip_link(page)
    _assert_usable(page)


def wait_until_still(page: Page) -> None:
    """Wait until all animations have ended, because intermediate colours are not part of the design."""
    page.wait_for_function(
        """() => document.getAnimations().every((animation) =>
          animation.playState !== "running" || animation.effect.getComputedTiming().endTime === Infinity)"""
    )


def _open(new_page: NewPage, address: str) -> Page:
    """Open a page, which may not ask for anything that is not there."""
    page, missing = new_page(), []
    page.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.wait_for_function(HAS_LOADED)
    assert not missing
    return page


def _see_the_skip_link(page: Page) -> None:
    """Check that the first stop of the keyboard leads to the content."""
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert "ddp-skip" in str(skip.get_attribute("class"))
    place = str(skip.get_attribute("href"))
    page.keyboard.press("Enter")
    page.wait_for_function("(place) => document.activeElement.matches(place)", arg=place)


def _assert_usable(page: Page) -> None:
    """Check a page in both themes, and on a phone."""
    wait_until_still(page)
    assert_usable(page)
    light = page.evaluate(BACKGROUND)
    to_dark = page.get_by_role("button", name="Dark theme", include_hidden=True)
    to_dark.evaluate("(button) => button.click()")
    page.wait_for_function(f"(light) => ({BACKGROUND})() !== light", arg=light)
    wait_until_still(page)
    assert_usable(page)
    page.set_viewport_size(PHONE)
    wait_until_still(page)
    assert_usable(page)


# The bar that covers the focused element, or "".
COVERED_BY = """() => {
  const element = document.activeElement, box = element.getBoundingClientRect();
  const popups = '.options, [role=listbox], [role=tooltip], .ddp-toasts';
  for (const y of [box.top + 2, (box.top + box.bottom) / 2, box.bottom - 2]) {
    let above = document.elementFromPoint((box.left + box.right) / 2, y);
    while (above && !above.contains(element) && !element.contains(above)) {
      const stays = ["fixed", "sticky"].includes(getComputedStyle(above).position);
      if (stays && !above.matches(popups)) return above.className || above.id;
      above = above.parentElement;
    }
  }
  return "";
}"""
FOCUSED = "() => document.activeElement.outerHTML.slice(0, 120)"
# The charts in which a tool overlaps the title of the horizontal axis.
COVERS_TITLE = """() => [...document.querySelectorAll('.ddp-chart')].filter((chart) => {
  const title = chart.querySelector('.xtitle')?.getBoundingClientRect();
  return title && [...chart.querySelectorAll('.modebar-btn')].some((tool) => {
    const box = tool.getBoundingClientRect();
    return box.left < title.right && title.left < box.right &&
      box.top < title.bottom && title.top < box.bottom;
  });
}).map((chart) => chart.dataset.chart)"""

HAS_NEW_SIZE = """() => {
  const plot = document.querySelector('[data-chart=loss] .js-plotly-plot');
  return Math.abs(plot._fullLayout.width - plot.clientWidth) < 1;
}"""
NUM_STOPS = """(bars) => bars.map((bar) =>
  [...bar.querySelectorAll('button')].filter((tool) => tool.tabIndex === 0).length)"""


@pytest.mark.parametrize(
    ("width", "height", "has_tour"),
    [(844, 390, True), (390, 844, False)],
    ids=["phone on its side, tour", "phone"],
)
def test_the_focus_is_not_covered(
    new_page: NewPage, site: Server, width: int, height: int, has_tour: bool
) -> None:
    """Move the focus forwards and backwards through the first page (WCAG 2.4.11)."""
    page = new_page(site.address, width=width, height=height)
    page.locator(".ddp-equation").wait_for()
    page.locator(".ddp-live-strip").wait_for()  # it appears late and moves the content below
    tour = page.get_by_role("region", name="A short tour")
    tour.wait_for()
    if not has_tour:
        tour.get_by_role("button", name="Close").click()
    page.evaluate("document.activeElement.blur()")
    covered = []
    for key in ["Tab"] * 40 + ["Shift+Tab"] * 40:
        page.keyboard.press(key)
        try:
            page.wait_for_function(f"() => ({COVERED_BY})() === ''", timeout=15_000)
        except NotInTime:
            covered.append(f"{page.evaluate(COVERED_BY)} covers {page.evaluate(FOCUSED)}")
    assert not covered, "\n".join(covered)


def test_the_tools_of_a_chart_are_one_stop_and_cover_no_title(new_page: NewPage, site: Server) -> None:
    page = _open(new_page, f"{site.address}/run?id=ended")
    page.wait_for_function("() => document.querySelectorAll('.ddp-chart .modebar').length >= 5")
    for axis in ("step", "time"):
        page.get_by_label("Drawn over").select_option(axis)
        for width in (1440, 1010, 720, 480, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(f"() => ({COVERS_TITLE})().length === 0", timeout=20_000)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.locator("[data-chart=loss]").scroll_into_view_if_needed()
    page.wait_for_function(HAS_NEW_SIZE)
    stops = page.locator(".modebar").evaluate_all(NUM_STOPS)
    assert set(stops) == {1}
    assert len(stops) >= 5
    tools = page.locator("[data-chart=loss] .modebar button")
    tools.first.focus()
    for key, at in (("ArrowLeft", -1), ("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("Home", 0)):
        page.keyboard.press(key)
        expect(tools.nth(at), key).to_be_focused()
        expect(tools.nth(at), key).to_have_attribute("tabindex", "0")
    zoom_in = page.locator("[data-chart=loss] .modebar [data-title='Zoom in']")
    shown = "() => document.querySelector('[data-chart=loss] .js-plotly-plot').layout.xaxis.range.join()"
    before = page.evaluate(shown)
    zoom_in.press("Enter")
    page.wait_for_function(f"(before) => ({shown})() !== before", arg=before, timeout=20_000)
    # A drawing keeps the tools and the focus; after a resize Plotly has replaced the tools.
    is_focused = "() => document.activeElement.matches('[data-chart=loss] .modebar [data-title=\"Zoom in\"]')"
    page.wait_for_function(is_focused)
    zoom_in.evaluate("(tool) => { tool.dataset.old = true; }")
    page.set_viewport_size({"width": 1200, "height": 900})
    page.wait_for_function("() => !document.querySelector('[data-chart=loss] [data-old]')")
    page.wait_for_function(is_focused)
    assert tools.evaluate_all("(all) => all.filter(({ tabIndex }) => tabIndex === 0).length") == 1
    toolbar = page.locator("[data-chart=loss] .modebar")
    assert (toolbar.get_attribute("role"), toolbar.get_attribute("aria-label")) == (
        "toolbar",
        "Tools of the chart: Loss",
    )


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
PAGES = {
    "train": "",
    "runs": "runs",
    "run": "run?id=ended",
    "machine": "machine",
    "queue": "queue",
    "learn": "learn",
}


def test_all_pages_have_one_frame(new_page: NewPage, site: Server) -> None:
    frames: dict[str, Any] = {}
    cards: dict[str, Any] = {}
    controls: dict[str, str] = {}
    page = _window(new_page, site)
    for name, path in PAGES.items():
        _go_to(page, f"{site.address}/{path}")
        frames[name] = page.evaluate(FRAME)
        if name in CARDS:
            cards[name] = page.locator(CARDS[name]).first.evaluate(BOX)
        if name in CONTROLS:
            controls[name] = page.locator(CONTROLS[name]).first.evaluate(RADIUS)
    assert all(frame == frames["runs"] for frame in frames.values()), frames
    assert all(card == cards["run"] for card in cards.values()), cards
    assert len(set(controls.values())) == 1, controls


def test_a_run_is_printed_whole_and_without_buttons(new_page: NewPage, site: Server) -> None:
    page = _window(new_page, site)
    _go_to(page, f"{site.address}/run?id=ended")
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


def _window(new_page: NewPage, site: Server) -> Page:
    """Open a dark window that has visited the site before, so that the font is cached."""
    page = new_page(f"{site.address}/runs", dark=True)
    page.evaluate("document.fonts.load('16px Inter')")
    return page


def _go_to(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("h1").first.wait_for()
    page.locator("#ddp-nav-end button").first.wait_for()
    assert page.evaluate("document.fonts.check('16px Inter')"), "the typeface is not there"
