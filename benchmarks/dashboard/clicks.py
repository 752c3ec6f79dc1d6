"""How long after a click each button of each page gives feedback: the first frame that shows a change.

Every visible, enabled button is clicked with the mouse on a page that was opened for it alone. The time is
from pressing the mouse button to the frame after the first change of the document. What changes by itself (a
clock, the numbers of a live run) is noted before the click and does not count. Leaving the page counts, and
so does a dialog of the browser itself.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import FileChooser, Page
from playwright.sync_api import TimeoutError as NothingChanged

from benchmarks.dashboard import browsing
from benchmarks.machine import spread
from benchmarks.made_writer import finished_run, live_run
from tools import page_driver

TARGET_MS = 100.0
QUIET_MS = 1_500
PATIENCE_MS = 4_000
NUM_STEPS = 1_000
BUTTONS = """() => [...document.querySelectorAll("button, summary")].filter((button) =>
  !button.disabled && button.checkVisibility({ visibilityProperty: true, opacityProperty: true })
    && button.getBoundingClientRect().width > 1)"""
NAMES = f"""() => ({BUTTONS})().map((button) =>
  (button.getAttribute("aria-label") || button.textContent).trim().replace(/\\s+/g, " "))"""
# Notes the elements that change while nobody does anything; then the first other change after the press.
WATCH = """() => {
  const busy = new Set();
  let pressed = null;
  const note = () => {
    if (pressed !== null && !sessionStorage.benchFeedbackMs) {
      sessionStorage.benchFeedbackMs = performance.now() - pressed;
    }
  };
  const isNews = ({ target }) => {
    for (let node = target; node !== null; node = node.parentNode) if (busy.has(node)) return false;
    return true;
  };
  delete sessionStorage.benchFeedbackMs;
  new MutationObserver((records) => {
    if (pressed === null) {
      for (const { target } of records) if (target !== document.body) busy.add(target);
    } else if (records.some(isNews)) requestAnimationFrame(() => requestAnimationFrame(note));
  }).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
  addEventListener("pointerdown", (event) => { pressed = event.timeStamp; }, { capture: true });
  addEventListener("pagehide", note);
  addEventListener("beforeprint", note);
}"""


def measure(times: int) -> dict[str, Any]:
    """Click every button of every page so many times."""
    with tempfile.TemporaryDirectory() as folder:
        runs_dir = Path(folder)
        ended = [finished_run(runs_dir / f"ended-{number}", NUM_STEPS).run_id for number in (1, 2)]
        with (
            live_run(runs_dir / "live", NUM_STEPS) as live,
            page_driver.serve(runs_dir, page_driver.NO_STANDBY) as server,
            page_driver.open_browser() as browser,
        ):
            paths = {
                "Train": "/",
                "Runs": "/runs",
                "a finished run": f"/run?id={ended[0]}",
                "a live run": f"/run?id={live.run_id}",
                "Compare": f"/runs?compare={','.join(ended)}",
                "Queue": "/queue",
                "Machine": "/machine",
            }
            found = {}
            for name, path in paths.items():
                page = browsing.new_page(browser)
                found[name] = _click_all(page, f"{server.address}{path}", times)
                page.close()
    every = [value for buttons in found.values() for values in buttons.values() for value in values]
    silent = [
        f"{page}: {name}" for page, buttons in found.items() for name, values in buttons.items() if not values
    ]
    slow = {
        f"{page}: {name}": round(max(values))
        for page, buttons in found.items()
        for name, values in buttons.items()
        if values and max(values) > TARGET_MS
    }
    return {
        "num_buttons": {page: len(buttons) for page, buttons in found.items()},
        "feedback_ms": spread(every, 0),
        "slower_than_target": slow,
        "without_feedback": silent,
    }


def _click_all(page: Page, address: str, times: int) -> dict[str, list[float]]:
    _open(page, address)
    names: list[str] = page.evaluate(NAMES)
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in found:
        for _ in range(times):
            _open(page, address)
            # An earlier click may have taken it away for good, as Stop does.
            if (after_ms := _click(page, name)) is not None:
                found[name].append(after_ms)
    return found


def _open(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function(f"() => ({BUTTONS})().length > 1")
    page.wait_for_timeout(QUIET_MS)


def _click(page: Page, name: str) -> float | None:
    """Return how many milliseconds after the press something changed; None where nothing did."""
    found = page.evaluate_handle(f"(name) => ({BUTTONS})()[({NAMES})().indexOf(name)] ?? null", name)
    if (button := found.as_element()) is None:
        return None
    button.scroll_into_view_if_needed()
    button.hover()
    dialogs: list[FileChooser] = []
    page.once("filechooser", lambda dialog: dialogs.append(dialog))
    page.evaluate(WATCH)
    page.wait_for_timeout(QUIET_MS)
    page.mouse.down()
    page.mouse.up()
    with contextlib.suppress(NothingChanged):
        page.wait_for_function("() => sessionStorage.benchFeedbackMs !== undefined", timeout=PATIENCE_MS)
        return float(page.evaluate("() => sessionStorage.benchFeedbackMs"))
    return 0.0 if dialogs else None
