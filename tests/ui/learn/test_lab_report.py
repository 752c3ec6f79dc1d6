"""The lab report in a real browser: requested on the Learn page, downloaded, and opened offline."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests import made_run
from tests.hostile_words import NAME
from tests.ui.attacks.attacking import assert_only_text
from tests.ui.conftest import NewContext, Watched, assert_accessible, assert_usable, assert_usable_on_a_phone
from tests.ui.learn import lessons
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import write_json_atomically

NUM_STEPS = 80
DRAWN = [4, 3, 2, 1.5, 1.2, 1, 0.9, 0.8, 0.7]
MAX_BYTES = 3_000_000


def progress(prediction: object, **more: object) -> str:
    """Return the page's stored progress of a completed lesson."""
    attempts = {"1": [{"choice": "seed 1", "runId": "three-1"}]}
    usual = {"isLocked": True, "isStarted": True, "runs": ["one-1", "two-1"], "answers": {"0": 0, "1": 0}}
    return json.dumps({"prediction": prediction, "attempts": attempts, "isDone": True, **usual, **more})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return finished runs; one of them has a hostile name."""
    runs_dir = tmp_path_factory.mktemp("report") / "runs"
    for name in ("one-1", "two-1", "three-1", "other-1"):
        made_run.make_finished(RunDirectory(runs_dir / name), NUM_STEPS)
    write_json_atomically(runs_dir / "one-1" / "notes.json", {"name": "The first", "tags": [], "note": ""})
    words = {"name": NAME, "tags": ["<b>tag</b>"], "note": NAME}
    write_json_atomically(runs_dir / "other-1" / "notes.json", words)
    return runs_dir


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    folder = lessons.write(runs.parent / "lessons")
    with page_driver.serve(runs, page_driver.NO_STANDBY, "--lessons", str(folder)) as served:
        yield served


@pytest.fixture(scope="module")
def report(browser: Browser, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report that a learner downloads with a name and one additional run."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(page_driver.PAGE_TIMEOUT_MS)
    watched = Watched(page)
    page.goto(f"{server.address}/learn")
    for lesson, done in (("chosen", progress(0)), ("drawn", progress(DRAWN))):
        page.evaluate("([key, value]) => localStorage.setItem(key, value)", [f"ddp:lesson:{lesson}", done])
    page.get_by_role("button", name="Lab report").click()
    dialog = page.get_by_role("dialog", name="Lab report")
    expect(dialog.get_by_role("checkbox")).to_have_count(2)
    assert_accessible(page)
    dialog.get_by_label("Your name (optional)").fill("Ada <b>Lovelace</b>")
    dialog.get_by_text("Other runs").click()
    dialog.get_by_label(re.compile("img src=x")).check()
    expect(dialog.get_by_text("Other runs (1)")).to_be_visible()
    with page.expect_download() as downloading:
        dialog.get_by_role("button", name="Download the report").click()
    expect(dialog).to_be_hidden()
    path = tmp_path_factory.mktemp("handed-in") / downloading.value.suggested_filename
    downloading.value.save_as(path)
    assert watched.complaints == [] and watched.foreign_requests == []
    page.close()
    return path


@pytest.fixture
def opened(new_context: NewContext, report: Path) -> Iterator[Watched]:
    """Yield the report in an offline browser."""
    watched = Watched(new_context(offline=True, viewport={"width": 1440, "height": 900}).new_page())
    watched.page.goto(report.as_uri())
    yield watched
    assert watched.complaints == []
    assert set(watched.requests) == {report.as_uri()}, "it asks for nothing else"


def test_it_holds_what_was_done_and_prints_on_white(opened: Watched, report: Path, runs: Path) -> None:
    page = opened.page
    assert re.fullmatch(r"lab-report-[\d-]{10}\.html", report.name)
    assert 600_000 < report.stat().st_size < MAX_BYTES
    expect(page.get_by_role("heading", level=1)).to_have_text("Lab report")
    expect(page.get_by_text("Ada <b>Lovelace</b>")).to_be_visible()
    chosen = page.get_by_role("region", name="To choose")
    expect(chosen).to_contain_text("The result differs from my prediction.")
    expect(chosen).to_contain_text("My experiment: seed 1.")
    expect(chosen.get_by_role("row", name="Global batch")).to_contain_text("64")
    drawn = page.get_by_role("region", name="To draw")
    expect(drawn).to_contain_text(re.compile(r"my curve is [\d.]+ away on average"))
    expect(drawn.get_by_role("group", name=re.compile("my prediction: from 4"))).to_be_visible()
    digest = hashlib.sha256((runs / "one-1" / "events.jsonl").read_bytes()).hexdigest()
    expect(page.get_by_text(f"{digest}  one-1/events.jsonl")).to_be_visible()
    assert_only_text(page)
    assert_usable(page)

    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    expect(page.get_by_role("toolbar").first).to_be_hidden()
    printed = page.pdf(prefer_css_page_size=True)
    assert 4 < len(re.findall(rb"/Type\s*/Page\b", printed)) < 20
    assert page.locator("details[open]").count() == 0, "what was opened for the printer is folded again"


def test_its_charts_are_those_of_the_page_and_it_is_read_on_a_phone(opened: Watched) -> None:
    page = opened.page
    chart = page.get_by_role("region", name="To choose").locator(".ddp-chart").first
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".legendtext").first).to_have_text("first")
    box = chart.locator(".nsewdrag").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    expect(chart.locator(".hoverlayer")).to_contain_text("first")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, middle + 4, steps=3)
    page.mouse.up()
    expect(chart.locator(".xtick text").first).to_have_text(re.compile(r"4\d"))
    page.mouse.dblclick(box["x"] + 50, middle)
    expect(chart.locator(".xtick text").first).to_have_text("0")
    page.emulate_media(color_scheme="dark")
    page.reload()
    assert_usable_on_a_phone(page)
