"""The card of the machine check: with simulated states, and one real check that is cancelled."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import Page, Route, expect

from tests.ui.conftest import Watched, assert_usable_on_a_phone
from tests.unit.fake_check_program import state_of
from tools.page_driver import Server
from trainers.contract.check_files import CheckFiles

CHECK_ID = "0123456789ab"
START = "Check this machine"


class FakeServer:
    """Answer the card's requests in the browser with simulated states; no check runs."""

    def __init__(self, page: Page) -> None:
        self.state = self.made(0)
        for endpoint in ("check_machine", "machine_check", "cancel_machine_check"):
            page.route(f"**/gradio_api/run/{endpoint}", self._answer)

    def made(self, num_done: int, state: str = "running", **values: Any) -> dict[str, Any]:
        """Return a state with `num_done` completed checks."""
        return state_of(CHECK_ID, state, num_done) | {"is_being_cancelled": False, "error": None, **values}

    def _answer(self, route: Route) -> None:
        if route.request.url.endswith("cancel_machine_check"):
            self.state = self.made(1, is_being_cancelled=True)
        route.fulfill(json={"data": [self.state]})


def open_card(watched: Watched, server: Server) -> Page:
    watched.page.goto(f"{server.address}/machine")
    watched.page.locator(".ddp-self-check").wait_for()
    return watched.page


def test_progress_the_table_a_cancel_and_a_failed_start_are_shown(server: Server, watched: Watched) -> None:
    fake = FakeServer(watched.page)
    fake.state = fake.made(1)
    page = open_card(watched, server)
    start, cancel = page.get_by_role("button", name=START), page.get_by_role("button", name="Cancel")
    now, rows = page.locator(".ddp-self-check-now"), page.locator(".ddp-findings tbody tr")
    file = page.get_by_role("link", name="File for a bug report")
    start.click()
    expect(now).to_contain_text("2 of 3: A rank that is killed …")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("passed")
    expect(rows.nth(1)).to_contain_text("being checked")
    expect(rows.nth(2)).to_contain_text("waits")
    expect(start).to_be_disabled()
    fake.state = fake.made(3, "done")
    expect(now).to_have_text("Of 3 checks 1 passed, 1 failed, 1 skipped because they do not apply.")
    expect(now).to_have_attribute("data-state", "bad")
    expect(rows.nth(1)).to_contain_text("failed")
    expect(rows.nth(1).locator(".ddp-finding-hint")).to_have_text("Do <b>this</b>.")
    assert page.locator(".ddp-findings b").count() == 0, "words are text"
    expect(rows.nth(0)).to_contain_text("writing: 412 MB/s")
    expect(rows.nth(0)).to_contain_text("writing: 2.0 × slower")
    expect(file).to_have_attribute("href", re.compile(rf"/live/machine/check/{CHECK_ID}/report\.txt$"))
    expect(cancel).to_be_disabled()
    assert_usable_on_a_phone(page, ".ddp-self-check")

    fake.state = fake.made(1)
    open_card(watched, server)
    start.click()
    cancel.click()
    expect(now).to_contain_text("Cancelling …")
    expect(cancel).to_be_disabled()
    expect(start).to_be_disabled()
    fake.state = fake.made(3, "cancelled")
    expect(now).to_have_text("Cancelled. No process is left.")

    fake.state = fake.made(0, "failed", error="This machine cannot be checked: <i>why</i>", findings=[])
    open_card(watched, server)
    start.click()
    expect(now).to_have_text("This machine cannot be checked: <i>why</i>")
    expect(file).to_be_hidden()
    expect(start).to_be_enabled()

    # A proxy has logged in the user.
    student = {"has_login": True, "has_logout": False, "name": "bob", "role": "student"}
    page.route("**/live/me", lambda route: route.fulfill(json=student))
    page.reload()
    expect(page.locator(".ddp-person")).to_have_text("bobstudent")
    expect(page.get_by_role("button", name="Log out")).to_have_count(0)
    expect(start).to_be_disabled()
    expect(page.get_by_text("Only a teacher can start or cancel a check of this machine")).to_be_visible()


def test_a_real_check_is_cancelled(server: Server, watched: Watched, client: Client, runs_dir: Path) -> None:
    page = open_card(watched, server)
    page.get_by_role("button", name=START).click()
    now = page.locator(".ddp-self-check-now")
    expect(now).to_contain_text("Driver, wheel and card …")
    with pytest.raises(AppError, match="a check of this machine is already running"):
        client.predict(api_name="/check_machine")
    # Strategies are known after the first check; the next checks run real jobs.
    expect(page.locator(".ddp-findings tbody tr")).to_have_count(15)
    page.get_by_role("button", name="Cancel").click()
    expect(now).to_have_text("Cancelled. No process is left.")
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends, or a parent has not waited for it yet
            assert "trainers.check_machine" not in process.cmdline()
    assert not CheckFiles(runs_dir).work.exists()
    page.reload()
    expect(now).to_have_text("Cancelled. No process is left.")
    with page.expect_download() as downloaded:
        page.get_by_role("link", name="File for a bug report").click()
    text = downloaded.value.path().read_text(encoding="utf-8")
    assert downloaded.value.suggested_filename.startswith("machine-check-")
    assert "VERSIONS" in text and str(runs_dir) not in text
    assert time.strftime("%Y", time.gmtime()) in text
