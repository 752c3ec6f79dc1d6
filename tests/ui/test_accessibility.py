"""axe-core checks every page, light and dark, wide and narrow: it finds nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from benchmarks.made_writer import finished_run, live_run
from tools import page_driver

pytestmark = pytest.mark.ui

# Each page says so while it waits for what it shows.
HAS_LOADED = "() => [...document.querySelectorAll('.ddp-loading')].every((waiting) => waiting.hidden)"
LOOKS = {
    "light": {"width": 1440, "height": 900, "dark": False},
    "dark": {"width": 1440, "height": 900, "dark": True},
    "phone": {"width": 390, "height": 844, "dark": False},
    "phone, dark": {"width": 390, "height": 844, "dark": True},
}


@dataclass(frozen=True)
class Site:
    address: str
    live_run_id: str
    ended_run_id: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    runs_dir = tmp_path_factory.mktemp("accessible")
    ended = finished_run(runs_dir / "ended", 1_000)
    with (
        live_run(runs_dir / "live", 1_000) as live,
        page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server,
    ):
        yield Site(server.address, live.run_id, ended.run_id)


@pytest.mark.parametrize("look", LOOKS)
def test_the_first_page(browser: Browser, site: Site, look: str) -> None:
    page = _open(browser, site.address, look)
    page.locator(".ddp-equation").wait_for()
    # What is folded away is looked at as well.
    closed = page.locator("button.label-wrap:not(.open)")
    while closed.count() > 0:
        closed.first.click()
    wait_until_still(page)
    _assert_accessible(page)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("which", ["live", "ended"])
def test_a_run_s_page(browser: Browser, site: Site, which: str, look: str) -> None:
    run_id = site.live_run_id if which == "live" else site.ended_run_id
    page = _open(browser, f"{site.address}/run?id={run_id}", look)
    page.wait_for_function("() => (window.ddpDrawLog || []).length > 0")
    wait_until_still(page)
    _assert_accessible(page)


@pytest.mark.parametrize("look", LOOKS)
def test_a_projector_s_pages(browser: Browser, site: Site, look: str) -> None:
    for more in ("projector=1", f"beside={site.live_run_id}"):
        page = _open(browser, f"{site.address}/run?id={site.ended_run_id}&{more}", look)
        num_runs = 1 + more.startswith("beside")
        drawn = "(number) => document.querySelectorAll('[data-chart=loss] .main-svg').length >= number"
        page.wait_for_function(drawn, arg=num_runs)
        wait_until_still(page)
        _assert_accessible(page)


@pytest.mark.parametrize("look", LOOKS)
def test_every_other_page_that_the_first_one_links_to(browser: Browser, site: Site, look: str) -> None:
    first = _open(browser, site.address, look)
    links = first.locator("nav a")
    links.first.wait_for()
    addresses = {str(link.evaluate("(link) => link.href")) for link in links.all()}
    others = {address for address in addresses if "/run?" not in address and not address.endswith("/")}
    first.close()
    assert others, "there is at least the list of runs"
    others |= {f"{site.address}/{path}" for path in ("queue", "runs?bin=1")}
    others.add(f"{site.address}/runs?compare={site.ended_run_id},{site.live_run_id}")
    for address in sorted(others):
        page = _open(browser, address, look)
        page.locator("h1").first.wait_for()
        page.wait_for_function(HAS_LOADED)
        wait_until_still(page)
        _assert_accessible(page)


def wait_until_still(page: Page) -> None:
    """Wait until nothing folds, slides or fades any more: colours in between are nobody's."""
    page.wait_for_function(
        """() => document.getAnimations().every((animation) =>
          animation.playState !== "running" || animation.effect.getComputedTiming().endTime === Infinity)"""
    )


def _open(browser: Browser, address: str, look: str) -> Page:
    return page_driver.open_page(browser, address, **LOOKS[look])


def _assert_accessible(page: Page) -> None:
    found: list[dict[str, Any]] = (
        Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    )
    words = [_in_words(violation) for violation in found]
    address = page.url
    page.close()
    assert not words, f"{address}\n" + "\n".join(words)


def _in_words(violation: dict[str, Any]) -> str:
    """Name the rule, why it matters and each element that breaks it, with what axe says about it."""
    lines = [f"{violation['id']} ({violation['impact']}): {violation['help']} {violation['helpUrl']}"]
    for node in violation["nodes"]:
        lines.append(f"  {' '.join(map(str, node['target']))}\n    {node['html'][:200]}")
        lines.extend(f"    {line}" for line in node["failureSummary"].splitlines()[1:])
    return "\n".join(lines)
