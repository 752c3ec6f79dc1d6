"""Make the README's pictures from a real run on a real page.

    python -m tools.screenshots [FOLDER]

Without a folder the pictures in docs/images are replaced. The run is the default one, photographed
while it trains; further pictures show the language model, the phone and dark mode.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gradio_client import Client
from playwright.sync_api import Page

from tools import page_driver

REPOSITORY = Path(__file__).resolve().parent.parent
POINTS = "(count) => window.ddpDrawLog && window.ddpDrawLog.length > count"
TEXT_AFTER_MS = 45_000
MEASURING_MS = 25_000
SCROLL_TO_THEATRE = "() => document.querySelector('#closer-step-theatre').scrollIntoView()"
SCROLL_TO_CHECK = """() => {
  const headings = [...document.querySelectorAll("h2")];
  const heading = headings.find((found) => found.textContent.startsWith("How fast"));
  window.scrollTo(0, heading.getBoundingClientRect().top + window.scrollY - 20);
}"""


def main() -> None:
    """Take all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the checkout, so that the command on the page is as short as a user's.
    with (
        tempfile.TemporaryDirectory(prefix="runs-", dir=REPOSITORY) as runs,
        page_driver.serve(Path(runs) / "runs") as server,
        page_driver.open_browser() as browser,
    ):
        page = page_driver.open_page(browser, server.address)
        page.locator(".ddp-equation").wait_for()
        page.get_by_role("button", name="Close").click()  # the tour
        page.locator(".ddp-memory-card").wait_for()
        page.wait_for_timeout(500)
        page.screenshot(path=folder / "train.png")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/run?id=*")
        page.wait_for_function(POINTS, arg=120, timeout=120_000)
        _photograph(page, folder / "run.png")
        address = page.url
        page.close()
        for name, width, height, dark in (("phone", 390, 844, False), ("dark", 1440, 900, True)):
            other = page_driver.open_page(browser, address, width=width, height=height, dark=dark)
            other.wait_for_function(POINTS, arg=3, timeout=60_000)
            _photograph(other, folder / f"run-{name}.png")
            other.close()
        page = page_driver.open_page(browser, f"{address}#closer-step-theatre")
        page.get_by_role("button", name="Record", exact=True).click()
        page.locator("#closer-step-theatre svg.ddp-theatre-lanes").wait_for()
        page.wait_for_timeout(700)
        # What is far away has no size of its own until somebody comes near.
        page.evaluate(SCROLL_TO_THEATRE)
        page.wait_for_timeout(700)
        page.evaluate(SCROLL_TO_THEATRE)
        _photograph(page, folder / "step-theatre.png")
        page.close()
        client = Client(server.address, verbose=False)
        run_id = address.partition("?id=")[2]
        if client.predict(run_id, api_name="/run_status")["state"] == "running":
            client.predict(run_id, False, api_name="/stop_run")
        written = client.predict({"dataset": "austen", "model": "gpt"}, api_name="/start_run")["run_id"]
        page = page_driver.open_page(browser, f"{server.address}/run?id={written}")
        page.wait_for_function(POINTS, arg=50, timeout=120_000)
        page.wait_for_timeout(TEXT_AFTER_MS)
        page.locator('[data-section="sample"], .ddp-sample-text').first.scroll_into_view_if_needed()
        _photograph(page, folder / "text.png")
        client.predict(written, False, api_name="/stop_run")
        page.goto(f"{server.address}/runs")
        page.get_by_text(written).first.wait_for()
        _photograph(page, folder / "runs.png")
        page.goto(f"{server.address}/runs?compare={run_id},{written}")
        page.locator(".js-plotly-plot").wait_for()
        _photograph(page, folder / "compare.png")
        page.goto(f"{server.address}/machine")
        page.get_by_role("button", name="Measure").click()
        page.wait_for_timeout(MEASURING_MS)
        # From here on: above it stands where this checkout lies.
        page.evaluate(SCROLL_TO_CHECK)
        _photograph(page, folder / "machine.png")
        page.goto(f"{server.address}/learn")
        page.get_by_role("link", name="What a rank is").wait_for()
        _photograph(page, folder / "learn.png")


def _photograph(page: Page, path: Path) -> None:
    page.wait_for_timeout(700)
    page.screenshot(path=path)
    print(path)


if __name__ == "__main__":
    main()
