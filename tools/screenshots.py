"""Take the README's screenshots of a real run on a real page.

    python -m tools.screenshots [FOLDER] [--lessons] [--own-data] [--code]

Without a folder, replaces the images in docs/images. The run has default values and is captured during
training; further screenshots show the language model, the phone and dark mode. With --lessons only the
lessons of LESSONS are run and captured with their lab report; with --own-data only a table is inspected;
with --code a model is tried, and its run is opened as a script and started.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from gradio_client import Client
from playwright.sync_api import Browser, Page

from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import Lesson
from ddp_gui.server import LESSONS as LESSON_FILES
from tools import page_driver
from tools.page_driver import Server
from trainers.contract import events

REPOSITORY = Path(__file__).resolve().parent.parent
POINTS = "(count) => window.ddpDrawLog && window.ddpDrawLog.length > count"
TEXT_AFTER_MS = 45_000
MEASURING_MS = 25_000
LESSONS = {2: "who-sees-what", 4: "global-batch", 9: "speed-up"}
A4_WIDTH_PX = 720  # 210 mm without the margins
# The strokes of a 7, as shares of the drawing's size.
SEVEN = ((0.25, 0.2), (0.75, 0.2), (0.45, 0.85))
SCROLL_TO_THEATRE = "() => document.querySelector('#closer-step-theatre').scrollIntoView()"
SCROLL_TO_CHECK = """() => {
  const headings = [...document.querySelectorAll("h2")];
  const heading = headings.find((found) => found.textContent.startsWith("How fast"));
  window.scrollTo(0, heading.getBoundingClientRect().top + window.scrollY - 20);
}"""


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY / "docs" / "images")
    parser.add_argument("--lessons", action="store_true")
    parser.add_argument("--own-data", action="store_true")
    parser.add_argument("--code", action="store_true")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.lessons:
        _photograph_lessons(folder)
        return
    if options.own_data:
        _photograph_own_data(folder)
        return
    if options.code:
        _photograph_code(folder)
        return
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
        # Content far from the viewport has no size until it is scrolled near it.
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
        # Scroll down: the part above shows the path of this checkout.
        page.evaluate(SCROLL_TO_CHECK)
        _photograph(page, folder / "machine.png")
        page.goto(f"{server.address}/learn")
        page.get_by_role("link", name="What a rank is").wait_for()
        _photograph(page, folder / "learn.png")


def _photograph_code(folder: Path) -> None:
    """Photograph a drawing that a trained model names, and the run's script in the editor and started."""
    with (
        tempfile.TemporaryDirectory() as runs,
        page_driver.serve(Path(runs) / "runs", page_driver.NO_STANDBY) as server,
        page_driver.open_browser() as browser,
    ):
        client = Client(server.address, verbose=False)
        settings = {"dataset": "digits", "model": "cnn", "num_epochs": 20, "nproc_per_node": 2}
        run_id = client.predict(settings, api_name="/start_run")["run_id"]
        while client.predict(run_id, api_name="/run_status")["state"] in events.LIVE_STATES:
            time.sleep(0.5)
        page = page_driver.open_page(browser, f"{server.address}/run?id={run_id}")
        page.get_by_role("heading", name="Try it").scroll_into_view_if_needed()
        drawing = page.locator(".ddp-try-canvas")
        drawing.wait_for()
        drawing.evaluate("(canvas) => canvas.closest('section').scrollIntoView()")
        box = drawing.bounding_box()
        assert box is not None
        for number, (x, y) in enumerate(SEVEN):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=10)
            if number == 0:
                page.mouse.down()
        page.mouse.up()
        page.get_by_text("The model says").wait_for()
        page.wait_for_timeout(2_000)
        page.screenshot(path=folder / "try.png")
        page.get_by_text("Show train.py").click()
        page.get_by_role("button", name="Open in the editor").click()
        page.wait_for_url("**/script")
        page.locator(".cm-content").get_by_text("train.py").first.wait_for()
        page.wait_for_timeout(1_000)
        page.screenshot(path=folder / "script.png")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/run?id=*")
        page.wait_for_function(POINTS, arg=20, timeout=120_000)
        _photograph(page, folder / "script-run.png")


def _photograph_own_data(folder: Path) -> None:
    """Capture the form's preview of a table in the format of German spreadsheets."""
    labels = ("ja", "nein", "Nein", "nein")
    lines = ["Kunden 2024;;;;;", "Nr.;Umsatz;Gewicht;seit;Note;gekündigt"]
    for n in range(120):
        grade = "k. A." if n % 9 == 4 else f"{1 + n * 7 % 40 / 10:.1f}".replace(".", ",")
        sales = f"{1 + n * 7 % 9}.{100 + n * 131 % 900},{n * 13 % 100:02} €"
        lines.append(
            f"{n * 37 % 120 + 1};{sales};{50 + n * 31 % 60} kg;{1 + n * 5 % 28:02}.{1 + n % 12:02}.2023;"
            f"{grade};{labels[n * 7 % 4]}"
        )
    lines.append("Summe;607.190,00 €;9.540 kg;;;")
    with (
        tempfile.TemporaryDirectory(prefix="own-") as place,
        page_driver.serve(Path(place) / "runs", page_driver.NO_STANDBY) as server,
        page_driver.open_browser() as browser,
    ):
        path = Path(place) / "kunden.csv"
        path.write_bytes("\r\n".join(lines).encode("cp1252"))
        for name, width, height in (("", 1440, 900), ("-phone", 390, 844)):
            page = page_driver.open_page(browser, server.address, width=width, height=height)
            page.locator(".ddp-equation").wait_for()
            page.get_by_role("button", name="Close").click()  # the tour
            page.get_by_label("Data set", exact=True).click()
            page.get_by_role("option", name="Your own data").click()
            page.get_by_label("Path of your data").fill(str(path))
            page.get_by_label("Path of your data").press("Enter")
            page.locator(".ddp-decisions").wait_for()
            page.evaluate("() => document.querySelector('#own-data-seen').scrollIntoView()")
            # Without the column of the command, which contains the path of this checkout.
            page.wait_for_timeout(700)
            page.screenshot(
                path=folder / f"own-data-preview{name}.png",
                clip={"x": 0, "y": 0, "width": min(width, 790), "height": height},
            )
            page.close()


def _photograph_lessons(folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as runs,
        page_driver.serve(Path(runs) / "runs") as server,
        page_driver.open_browser() as browser,
    ):
        library = Library([LESSON_FILES])
        progress = {name: _do(library.find(name), server) for name in LESSONS.values()}
        for number, name in LESSONS.items():
            page = _open_learn(browser, server, progress, f"?lesson={name}")
            page.get_by_role("region", name="5. Check").wait_for()
            page.wait_for_timeout(3_000)
            page.screenshot(path=folder / f"lesson-{number}.png", full_page=True)
            page.close()
        page = _open_learn(browser, server, progress, "")
        page.get_by_role("button", name="Lab report").click()
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Download the report").click()
        report = browser.new_page(viewport={"width": A4_WIDTH_PX, "height": 1000})
        report.emulate_media(media="print")
        file = Path(runs) / downloading.value.suggested_filename
        downloading.value.save_as(file)
        report.goto(file.as_uri())
        report.locator("section.lesson").first.screenshot(path=folder / "lab-report.png")


def _do(lesson: Lesson, server: Server) -> str:
    """Start a lesson's runs one after the other. Return the browser's record of a finished lesson."""
    client, run_ids = Client(server.address, verbose=False), []
    for number in range(len(lesson.runs)):
        run_ids.append(client.predict(lesson.name, number, api_name="/start_lesson_run")["run_id"])
        while client.predict(run_ids[-1], api_name="/run_status")["state"] in events.LIVE_STATES:
            time.sleep(0.5)
    answers = {number: question.right for number, question in enumerate(lesson.questions)}
    done = {"prediction": 0, "isLocked": True, "isStarted": True, "isDone": True}
    return json.dumps(done | {"runs": run_ids, "attempts": {}, "answers": answers})


def _open_learn(browser: Browser, server: Server, progress: dict[str, str], query: str) -> Page:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    for name, done in progress.items():
        page.add_init_script(f"localStorage.setItem('ddp:lesson:{name}', {json.dumps(done)})")
    page.goto(f"{server.address}/learn{query}")
    return page


def _photograph(page: Page, path: Path) -> None:
    page.wait_for_timeout(700)
    page.screenshot(path=path)
    print(path)


if __name__ == "__main__":
    main()
