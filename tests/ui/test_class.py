"""A class behind a reverse proxy with a prefix: logging in, whose runs are whose, and what a teacher sets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from gradio_client import Client
from gradio_client.exceptions import AppError, AuthenticationError
from playwright.sync_api import Browser, BrowserContext, Page, expect

from ddp_gui.access import owners
from ddp_gui.access.people import Person
from tests import prefix_proxy
from tests.harness import wait_until
from tests.ui.conftest import kill_runs
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, EVE, password_of
from tests.unit.test_gui_runs import make_run
from tools import page_driver

LONG = {"dataset": "digits", "model": "mlp", "num_epochs": 9000, "nproc_per_node": 1, "device": "cpu"}
ANNS = "fashion_mnist-cnn-1"
# Two cores serve the page, train and draw.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def class_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs directory with a run of Ann's and one of Bob's."""
    runs_dir = tmp_path_factory.mktemp("class") / "runs"
    for person in (ANN, BOB):
        owners.note_owner(make_run(runs_dir), person.name)
    return runs_dir


@pytest.fixture(scope="module")
def address(class_dir: Path) -> Iterator[str]:
    """Serve the class's page behind a proxy and return the address that people use."""
    accounts = class_of.make(class_dir.parent / "accounts.json").path
    port = page_driver.free_port()
    command = [sys.executable, "app.py", "--no-browser", "--port", str(port), "--runs-dir", str(class_dir)]
    command += [
        "--auth-file",
        str(accounts),
        "--root-path",
        "/ddp",
        "--proxy-from",
        "127.0.0.1",
        page_driver.NO_STANDBY,
    ]
    with (
        page_driver.serve_command(command, port, "login"),
        prefix_proxy.in_front_of(port, "/ddp") as in_front,
    ):
        yield in_front
        kill_runs(class_dir)


@pytest.fixture
def visit(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script("localStorage.setItem('ddp:tour', '\"seen\"')")
    context.set_default_timeout(30_000)
    yield context
    context.close()


def client_of(address: str, person: Person) -> Client:
    return Client(f"{address}/", auth=(person.name, password_of(person)), verbose=False)


def log_in(page: Page, person: Person, password: str = "") -> None:
    page.get_by_label("Name").fill(person.name)
    page.get_by_label("Password").fill(password or password_of(person))
    page.get_by_role("button", name="Log in").click()


def test_who_logs_in_gets_to_the_wished_page_and_may_only_look_at_others_runs(
    visit: BrowserContext, address: str
) -> None:
    page, left = visit.new_page(), []
    page.on("request", lambda request: left.append(request.url))
    page.goto(f"{address}/run?id={ANNS}")
    assert not Axe().run(page).response["violations"]
    log_in(page, BOB, "not-his-password")
    expect(page.get_by_role("alert")).to_have_text("This name and password do not belong together.")
    expect(page.get_by_label("Name")).to_have_value("bob")
    assert not Axe().run(page).response["violations"]
    log_in(page, BOB)
    expect(page.locator(".ddp-not-mine")).to_contain_text("This run belongs to ann.")
    assert page.url == f"{address}/run?id={ANNS}"
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.locator(".ddp-list-row")).to_have_count(2)
    page.get_by_label("Owner").select_option("my runs")
    expect(page.locator(".ddp-list-row .ddp-cell-owner")).to_have_text(["bob"])
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    outside = [url for url in left if not url.startswith((address, "data:", "blob:"))]
    assert outside == [], "everything asked for lies below the prefix"


def test_the_page_to_log_in_works_without_scripts(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/runs")
    log_in(page, ANN)
    expect(page).to_have_url(re.compile(r"/ddp/runs$"))
    context.close()


def test_a_run_is_watched_by_the_class_and_stopped_by_its_owner(visit: BrowserContext, address: str) -> None:
    page = visit.new_page()
    page.goto(f"{address}/")
    log_in(page, ANN)
    expect(page.locator("#start-button")).to_be_visible()
    anns, bobs = client_of(address, ANN), client_of(address, BOB)
    run_id = anns.predict(LONG, api_name="/start_run")["run_id"]
    page.goto(f"{address}/run?id={run_id}")
    drawn = "(window.ddpLastDrawn?.cursor ?? 0) > 5 && window.ddpStats.opens > 0"
    wait_until("points that were streamed", lambda: page.evaluate(drawn), 60)
    for endpoint in ("/stop_run", "/pause_run", "/checkpoint_run"):
        with pytest.raises(AppError, match="belongs to ann: only ann or a teacher"):
            bobs.predict(run_id, api_name=endpoint)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ddp-header .ddp-pill")).to_have_text("stopped", timeout=60_000)
    with pytest.raises(AuthenticationError):
        Client(f"{address}/", auth=("bob", "not-his-password"), verbose=False)


def test_a_teacher_hides_the_runs_of_others(visit: BrowserContext, browser: Browser, address: str) -> None:
    bobs = visit.new_page()
    bobs.goto(f"{address}/runs")
    log_in(bobs, BOB)
    expect(bobs.get_by_role("link", name=ANNS)).to_be_visible()
    context = browser.new_context()
    eves = context.new_page()
    eves.goto(f"{address}/runs")
    log_in(eves, EVE)
    for choice, num_seen in (("Everybody sees only their own", 0), ("Everybody sees all runs", 1)):
        eves.get_by_role("button", name="Class …").click()
        eves.get_by_text(choice).click()
        eves.get_by_role("button", name="Save").click()
        # Nobody reloads: the list itself notices.
        expect(bobs.get_by_role("link", name=ANNS)).to_have_count(num_seen)
    expect(bobs.get_by_role("button", name="Class …")).to_have_count(0)
    context.close()
