"""axe-core finds no violations on any page, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as NotInTime

from tests.made_run import live_run, make_finished
from tests.ui.conftest import NewPage, accessibility_violations
from tools import page_driver
from trainers.contract.rundir import RunDirectory

pytestmark = pytest.mark.ui

# Each page shows a loading message until its content arrives.
HAS_LOADED = "() => [...document.querySelectorAll('.ddp-loading')].every((waiting) => waiting.hidden)"
# Wide windows show most content and are tested in both themes; narrow ones have no separate colours.
LOOKS = {
    "wide": {"width": 1440, "height": 900, "dark": False},
    "phone, dark": {"width": 390, "height": 844, "dark": True},
}
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"


@dataclass(frozen=True)
class Site:
    address: str
    live_run_id: str
    ended_run_id: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    runs_dir = tmp_path_factory.mktemp("accessible")
    ended = make_finished(RunDirectory(runs_dir / "ended"), 1_000)
    with (
        live_run(runs_dir / "live", 1_000) as live,
        page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server,
    ):
        yield Site(server.address, live.run_id, ended.run_id)


@pytest.mark.parametrize("look", LOOKS)
def test_the_first_page(new_page: NewPage, site: Site, look: str) -> None:
    page = _open(new_page, site.address, look)
    page.locator(".ddp-equation").wait_for()
    # Include the content of closed sections.
    closed = page.locator("button.label-wrap:not(.open)")
    while closed.count() > 0:
        closed.first.click()
    wait_until_still(page)
    _assert_accessible(page)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("which", ["live", "ended"])
def test_a_run_s_page(new_page: NewPage, site: Site, which: str, look: str) -> None:
    run_id = site.live_run_id if which == "live" else site.ended_run_id
    page = _open(new_page, f"{site.address}/run?id={run_id}", look)
    page.wait_for_function("() => (window.ddpDrawLog || []).length > 0")
    wait_until_still(page)
    _assert_accessible(page)


def test_a_projector_s_pages(new_page: NewPage, site: Site) -> None:
    for more in ("projector=1", f"beside={site.live_run_id}"):
        page = _open(new_page, f"{site.address}/run?id={site.ended_run_id}&{more}", "wide")
        num_runs = 1 + more.startswith("beside")
        drawn = "(number) => document.querySelectorAll('[data-chart=loss] .main-svg').length >= number"
        page.wait_for_function(drawn, arg=num_runs)
        wait_until_still(page)
        _assert_accessible(page)


@pytest.mark.parametrize("look", LOOKS)
def test_every_other_page_that_the_first_one_links_to(new_page: NewPage, site: Site, look: str) -> None:
    first = _open(new_page, site.address, look)
    links = first.locator("nav a")
    links.first.wait_for()
    addresses = {str(link.evaluate("(link) => link.href")) for link in links.all()}
    others = {address for address in addresses if "/run?" not in address and not address.endswith("/")}
    first.close()
    assert others, "there is at least the list of runs"
    others |= {f"{site.address}/{path}" for path in ("queue", "runs?bin=1")}
    others.add(f"{site.address}/runs?compare={site.ended_run_id},{site.live_run_id}")
    for address in sorted(others):
        page = _open(new_page, address, look)
        page.locator("h1").first.wait_for()
        page.wait_for_function(HAS_LOADED)
        wait_until_still(page)
        _assert_accessible(page)


def wait_until_still(page: Page) -> None:
    """Wait until all animations have ended, because intermediate colours are not part of the design."""
    page.wait_for_function(
        """() => document.getAnimations().every((animation) =>
          animation.playState !== "running" || animation.effect.getComputedTiming().endTime === Infinity)"""
    )


def _open(new_page: NewPage, address: str, look: str) -> Page:
    return new_page(address, **LOOKS[look])


def _assert_accessible(page: Page) -> None:
    """Check a page in its theme, and a light one in the dark theme, too; close it."""
    address, words = page.url, accessibility_violations(page)
    to_dark = page.get_by_role("button", name="Dark theme", include_hidden=True)
    if to_dark.count():
        light = page.evaluate(BACKGROUND)
        to_dark.evaluate("(button) => button.click()")
        page.wait_for_function(f"(light) => ({BACKGROUND})() !== light", arg=light)
        wait_until_still(page)
        words += accessibility_violations(page)
    page.close()
    assert not words, f"{address}\n" + "\n".join(words)


SMALL_WINDOWS = {
    "phone": (390, 844),
    "phone, on its side": (844, 390),
}
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


@pytest.mark.parametrize(("size", "has_tour"), [("phone, on its side", True), ("phone", False)])
def test_what_has_the_focus_is_never_below_a_bar(
    new_page: NewPage, site: Site, size: str, has_tour: bool
) -> None:
    """Move the focus forwards and backwards through the first page (WCAG 2.4.11)."""
    width, height = SMALL_WINDOWS[size]
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


@pytest.mark.parametrize("path", ["", "runs", "queue", "machine", "learn", "run?id=ended"])
def test_each_page_begins_with_a_skip_link_and_asks_for_nothing_that_is_not_there(
    new_page: NewPage, site: Site, path: str
) -> None:
    page = new_page()
    missing: list[str] = []
    page.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
    page.goto(f"{site.address}/{path}")
    page.locator("h1").first.wait_for()
    page.wait_for_function(HAS_LOADED)
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert "ddp-skip" in str(skip.get_attribute("class"))
    place = str(skip.get_attribute("href"))
    page.keyboard.press("Enter")
    page.wait_for_function("(place) => document.activeElement.matches(place)", arg=place)
    assert not missing


def test_the_tools_of_a_chart_are_one_stop_and_cover_no_title(new_page: NewPage, site: Site) -> None:
    page = _open(new_page, f"{site.address}/run?id={site.ended_run_id}", "wide")
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
    assert set(stops) == {1} and len(stops) >= 5
    tools = page.locator("[data-chart=loss] .modebar button")
    tools.first.focus()
    for key, at in (("ArrowLeft", -1), ("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("Home", 0)):
        page.keyboard.press(key)
        assert tools.nth(at).evaluate("(tool) => tool === document.activeElement && tool.tabIndex === 0"), key
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
