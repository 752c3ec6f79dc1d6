"""Forwarding to a tracker: the section of the form, and the line on the page of a run."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.fake_mlflow import fake_mlflow
from tests.harness import END_TIMEOUT_S
from tests.ui.conftest import Watched, assert_accessible
from tests.ui.train.test_choices import open_form, pick
from tools.page_driver import Server


def test_a_run_is_forwarded_from_the_form_and_its_page_says_how_far(server: Server, watched: Watched) -> None:
    page = watched.page
    with fake_mlflow() as service:
        service.mode = "500"
        open_form(watched, server)
        pick(watched, "Data set", "Iris")
        page.get_by_role("button", name="Forward to a tracker").click()
        trackers = page.locator("#trackers li")
        expect(trackers).to_have_count(4)
        expect(trackers.filter(has_text="MLflow")).to_contain_text("needs no package")
        expect(page.get_by_label("Address of the service")).to_be_hidden()
        pick(watched, "Tracker", "mlflow")
        address = page.get_by_label("Address of the service")
        address.fill("http://user:word@host")
        address.blur()
        expect(page.locator("#problems")).to_contain_text("without user, password and token")
        address.fill(service.address)
        address.blur()
        expect(page.locator("#problems")).to_be_empty()
        assert_accessible(page, "#fold-forward")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/run?id=*")
        line = page.locator("#forwarding")
        expect(line).to_contain_text(
            "answered 500: out of order. Trying again at", timeout=END_TIMEOUT_S * 1000
        )
        expect(line).to_contain_text("The run is not affected.")
        service.mode = "ok"
        expect(line).to_contain_text("everything is forwarded", timeout=END_TIMEOUT_S * 1000)
        (stored,) = service.runs.values()
        assert stored["status"] == "FINISHED" and stored["params"]["dataset"] == "iris"
