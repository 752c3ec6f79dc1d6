"""Lessons exported as files: their runs are real, and the files work offline in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import PHONE, NewContext, Watched, assert_accessible, kill_runs
from tests.ui.learn import lessons
from tools.page_driver import REPOSITORY

MAX_BYTES = 1_500_000
EXPORT_TIMEOUT_S = 400


def export(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py", "export-lessons", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=EXPORT_TIMEOUT_S, check=False
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    texts = lessons.write(folder / "lessons")
    runs = folder / "runs"
    try:
        only = ["--only", "chosen,drawn", "--wheel", "https://lab.example/rankscope.whl"]
        done = export(str(folder / "out"), *only, "--lessons", str(texts), "--runs-dir", str(runs))
    finally:
        kill_runs(runs)
    assert done.returncode == 1, done.stderr
    assert "93-broken.md" in done.stderr, "a file that is no lesson is named, and the others are exported"
    return folder / "out"


@pytest.fixture
def opened(new_context: NewContext) -> Iterator[Watched]:
    watched = Watched(new_context(offline=True, viewport=PHONE, color_scheme="dark").new_page())
    yield watched
    assert watched.complaints == []
    assert all(address.startswith("file://") for address in watched.requests)


def test_a_choice_is_locked_before_the_recorded_runs_are_shown(opened: Watched, exported: Path) -> None:
    page = opened.page
    page.goto((exported / "index.html").as_uri())
    expect(page.get_by_role("listitem").filter(has_text="Find the hang")).to_be_visible()  # needs the program
    page.get_by_role("link", name="To choose").click()
    file = next(exported.glob("*-chosen.html"))
    assert 20_000 < file.stat().st_size < MAX_BYTES
    expect(page.get_by_role("heading", name="What happened")).to_be_hidden()
    expect(page.get_by_text("Both see the same.")).to_be_hidden()
    page.get_by_role("button", name="Lock my prediction").click()
    expect(page.get_by_role("heading", name="What happened")).to_be_hidden()  # nothing is chosen yet
    page.get_by_label("the first").check()
    page.get_by_role("button", name="Lock my prediction").click()
    expect(page.get_by_role("status").first).to_have_text("Not what happened: the right choice is marked.")
    expect(page.get_by_text("Both see the same.")).to_be_visible()
    expect(page.get_by_text("Both have 80 steps.")).to_be_visible()
    expect(page.get_by_role("row", name="Optimizer steps").first).to_contain_text("80")
    expect(page.get_by_role("group", name=re.compile(r"first: from \d")).first).to_be_visible()
    expect(page.locator(".ddp-chart .main-svg").first).to_be_visible()
    question = page.locator("form").nth(2)
    question.get_by_label("another").check()
    question.get_by_role("button", name="Check").click()
    expect(question.get_by_role("status")).to_have_text("Right.")
    expect(question.get_by_role("columnheader", name="seed 1")).to_be_visible()
    expect(page.get_by_text("pip install https://lab.example/rankscope.whl")).to_be_visible()
    page.get_by_role("link", name="rank", exact=True).click()
    expect(page.get_by_role("term").filter(has_text="rank")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert_accessible(page)


def test_a_curve_is_drawn_and_compared_with_the_measured_one(opened: Watched, exported: Path) -> None:
    page = opened.page
    page.goto(next(exported.glob("*-drawn.html")).as_uri())
    page.get_by_role("button", name="Lock my prediction").click()
    expect(page.get_by_role("status").first).to_have_text("Draw your curve first.")
    page.get_by_role("slider").first.press("Home")
    page.get_by_role("button", name="Lock my prediction").click()
    expect(page.get_by_role("status").first).to_contain_text("The dashed line is the measured one.")
    points = page.locator(".ddp-measured-line").get_attribute("points") or ""
    assert len(set(points.split())) > 4, "the loss was measured at several places"


def test_a_name_that_is_no_lesson_is_refused(tmp_path: Path) -> None:
    done = export(str(tmp_path / "out"), "--only", "no-such-lesson")
    assert done.returncode == 2
    assert "no-such-lesson" in done.stderr and "what-a-rank-is" in done.stderr
    assert not (tmp_path / "out").exists()
