"""A lesson in code in a real browser: a wrong run, hints, the solution, a right run, the lab report."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.harness import END_TIMEOUT_S
from tests.ui.conftest import Watched, assert_accessible
from tools.page_driver import Server

UNTIL_END_MS = END_TIMEOUT_S * 1000


def test_a_learner_is_wrong_gets_hints_and_is_right(server: Server, watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    page.goto(f"{server.address}/learn")
    page.get_by_role("link", name="14. Shard the data").click()
    expect(page.locator(".cm-content")).to_contain_text("shuffle=True")
    run = page.get_by_role("button", name="Run on two CPU ranks")
    run.click()
    failed = page.locator(".ddp-code-checks [data-outcome=failed]")
    expect(failed).to_contain_text("rank 1 trained on 512 of the 512 samples", timeout=UNTIL_END_MS)
    hints = page.locator(".ddp-code-hints li")
    expect(hints.nth(0)).to_be_visible()
    expect(hints.nth(1)).to_be_hidden()
    page.get_by_role("button", name="Another hint").click()
    expect(hints.nth(1)).to_be_visible()
    assert_accessible(page)

    page.get_by_role("button", name="Show the solution already").click()
    page.get_by_role("button", name="Put it into the editor").click()
    expect(page.locator(".cm-content")).to_contain_text("sampler.set_epoch(epoch)")
    run.click()
    expect(page.get_by_text("You have completed this lesson.")).to_be_visible(timeout=UNTIL_END_MS)
    expect(failed).to_have_count(0)

    page.reload()
    expect(page.locator(".cm-content")).to_contain_text("sampler.set_epoch(epoch)")
    page.get_by_role("button", name="Lab report").click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download the report").click()
    path = tmp_path / "report.html"
    downloading.value.save_as(path)
    text = path.read_text(encoding="utf-8")
    assert "sampler.set_epoch(epoch)" in text and "Right, after 2 runs; the solution was shown." in text
