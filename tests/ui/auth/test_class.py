"""A class behind a reverse proxy with a prefix: logins, owners of runs, and a teacher's settings.

Also attacks between users: hostile names, foreign addresses, access to another user's runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError, AuthenticationError
from playwright.sync_api import APIRequestContext, BrowserContext, Page, expect

from ddp_gui.auth import rights
from ddp_gui.auth.rights import Person
from tests import prefix_proxy
from tests.harness import START_TIMEOUT_S, wait_until
from tests.hostile_words import ACTING, NAME, TAGS, TURNED
from tests.ui.attacks.attacking import ELSEWHERE, assert_only_text
from tests.ui.conftest import ENDLESS, NewContext, Watched, assert_accessible, kill_runs
from tests.ui.queue.made_queue import made_line
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, EVE, password_of
from tests.unit.ddp_gui.runs.test_runs import make_run
from tools import page_driver

ANNS = "fashion_mnist-cnn-1"


@pytest.fixture(scope="module")
def class_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs directory with a run of Ann's and one of Bob's."""
    runs_dir = tmp_path_factory.mktemp("class") / "runs"
    for person in (ANN, BOB):
        rights.note_owner(make_run(runs_dir), person.name)
    return runs_dir


@pytest.fixture(scope="module")
def address(class_dir: Path) -> Iterator[str]:
    """Serve the class's page behind a proxy; yield its public URL."""
    accounts = class_of.make(class_dir.parent / "accounts.json").path
    port = page_driver.free_port()
    command = [sys.executable, "app.py", "--no-browser", "--port", str(port), "--runs-dir", str(class_dir)]
    command += ["--auth-file", str(accounts), "--root-path", "/ddp", "--proxy-from", "127.0.0.1"]
    command += [page_driver.NO_STANDBY]
    with (
        page_driver.serve_command(command, port, "login"),
        prefix_proxy.in_front_of(port, "/ddp") as in_front,
    ):
        yield in_front
        kill_runs(class_dir)


@pytest.fixture
def visit(new_context: NewContext) -> BrowserContext:
    return new_context(viewport={"width": 1440, "height": 900})


def log_in(page: Page, person: Person, password: str = "") -> None:
    page.get_by_label("Name").fill(person.name)
    page.get_by_label("Password").fill(password or password_of(person))
    page.get_by_role("button", name="Log in").click()


def enter(asking: APIRequestContext, address: str, person: Person) -> None:
    form: dict[str, str | float | bool] = {"username": person.name, "password": password_of(person)}
    assert asking.post(f"{address}/login", form=form).json() == {"success": True}


def test_a_log_in_leads_to_the_wished_page_of_another_s_run(visit: BrowserContext, address: str) -> None:
    page, left = visit.new_page(), []
    page.on("request", lambda request: left.append(request.url))
    page.goto(f"{address}/run?id={ANNS}")
    assert_accessible(page)
    log_in(page, BOB, "not-his-password")
    expect(page.get_by_role("alert")).to_have_text("The name or the password is incorrect.")
    expect(page.get_by_label("Name")).to_have_value("bob")
    assert_accessible(page)
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


def test_the_page_to_log_in_works_without_scripts(new_context: NewContext, address: str) -> None:
    page = new_context(java_script_enabled=False).new_page()
    page.goto(f"{address}/runs")
    log_in(page, ANN)
    expect(page).to_have_url(re.compile(r"/ddp/runs$"))


def test_a_run_is_watched_by_the_class_and_stopped_by_its_owner(visit: BrowserContext, address: str) -> None:
    page = visit.new_page()
    page.goto(f"{address}/")
    log_in(page, ANN)
    expect(page.locator("#start-button")).to_be_visible()
    anns, bobs = (Client(f"{address}/", auth=(p.name, password_of(p)), verbose=False) for p in (ANN, BOB))
    run_id = anns.predict(ENDLESS | {"nproc_per_node": 1}, api_name="/start_run")["run_id"]
    page.goto(f"{address}/run?id={run_id}")
    drawn = "(window.ddpLastDrawn?.cursor ?? 0) > 5 && window.ddpStats.opens > 0"
    wait_until("points that were streamed", lambda: page.evaluate(drawn), START_TIMEOUT_S)
    with pytest.raises(AppError, match="belongs to ann: only ann or a teacher"):
        bobs.predict(run_id, api_name="/stop_run")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ddp-header .ddp-pill")).to_have_text("stopped")
    with pytest.raises(AuthenticationError):
        Client(f"{address}/", auth=("bob", "not-his-password"), verbose=False)


def test_a_teacher_hides_the_runs_of_others(new_context: NewContext, address: str) -> None:
    contexts = new_context(), new_context()
    for context, person in zip(contexts, (BOB, EVE), strict=True):
        enter(context.request, address, person)
    bobs, eves = (context.new_page() for context in contexts)
    bobs.goto(f"{address}/runs")
    expect(bobs.get_by_role("link", name=ANNS)).to_be_visible()
    eves.goto(f"{address}/runs")
    for choice, num_seen in (("Everybody sees only their own", 0), ("Everybody sees all runs", 1)):
        eves.get_by_role("button", name="Class …").click()
        eves.get_by_text(choice).click()
        eves.get_by_role("button", name="Save").click()
        # The list updates without a reload.
        expect(bobs.get_by_role("link", name=ANNS)).to_have_count(num_seen)
    expect(bobs.get_by_role("button", name="Class …")).to_have_count(0)


def test_the_login_page_acts_on_no_words_and_leads_nowhere(visit: BrowserContext, address: str) -> None:
    watched = Watched(visit.new_page())
    page, wished, name = watched.page, f"runs?q={ACTING}", f'"><b>ann{TURNED}'
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog was opened: {dialog.message}"))
    page.goto(f"{address}/login?next={quote(wished)}")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(TAGS)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("The name or the password is incorrect.")
    expect(page.get_by_label("Name")).to_have_value(name)
    assert_only_text(page)
    log_in(page, BOB)
    expect(page.get_by_text("No run fits this filter.")).to_be_visible()
    assert_only_text(page)
    for elsewhere in ELSEWHERE:
        page.goto(f"{address}/login?next={quote(elsewhere)}")
        assert page.url.startswith(f"{address}/"), elsewhere
    assert watched.foreign_requests == []


def test_names_of_people_and_runs_are_text(visit: BrowserContext, class_dir: Path, address: str) -> None:
    watched, hostile = Watched(visit.new_page()), f"{NAME[:200]} {TURNED}"
    page = watched.page
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog was opened: {dialog.message}"))
    with made_line(class_dir, ACTING, hostile) as (waiting, _):
        enter(visit.request, address, EVE)
        page.goto(f"{address}/runs")
        expect(page.locator(".ddp-cell-owner").filter(has_text=TAGS)).to_have_count(2)
        assert_only_text(page)
        page.goto(f"{address}/queue")
        for place in (".ddp-waiting", ".ddp-going-on"):
            row = page.locator(f"{place} tbody tr")
            expect(row.locator("a")).to_contain_text(TAGS)
            expect(row.locator(".ddp-queue-run small")).to_contain_text("⟨U+202E⟩gnp.exe")
        expect(page.get_by_role("button", name="Remove from the queue: <img src=x")).to_be_visible()
        assert_only_text(page)
        enter(visit.request, address, BOB)
        page.goto(f"{address}/run?id={waiting.run_id}")
        expect(page.locator(".ddp-queued")).to_contain_text("in the queue")
        expect(page.locator(".ddp-not-mine")).to_contain_text(f"This run belongs to {TAGS}")
        assert_only_text(page)
    assert watched.complaints == [] and watched.foreign_requests == []


def test_who_knows_the_name_of_another_s_session_gets_nothing_of_it(address: str) -> None:
    with httpx.Client(timeout=180) as ann, httpx.Client(timeout=180) as bob:
        for client, person in ((ann, ANN), (bob, BOB)):
            form = {"username": person.name, "password": password_of(person)}
            assert client.post(f"{address}/login", data=form).is_success
        gradio = f"{address}/gradio_api"
        (catalog,) = (
            each["id"]
            for each in ann.get(f"{address}/config").json()["dependencies"]
            if each["api_name"] == "catalog"
        )
        call = {"data": [], "fn_index": catalog, "session_hash": "anns"}
        asked = ann.post(f"{gradio}/queue/join", json=call).json()["event_id"]
        later = ann.post(f"{gradio}/call/catalog", json={"data": []}).json()["event_id"]
        data = f"{gradio}/queue/data?session_hash=anns"
        # Bob knows all IDs.
        for path in (data, f"{data}&session_hash=ann~anns", f"{gradio}/queue/data?session_hash=ann~anns"):
            told = bob.get(path).text
            assert "session_not_found" in told and asked not in told, path
        assert bob.get(f"{gradio}/call/catalog/{later}").status_code == 404
        with bob.stream("GET", f"{gradio}/heartbeat/anns") as heartbeat:
            next(heartbeat.iter_lines())
        ends = {"session_hash": "anns", "fn_index": catalog, "event_id": asked}
        assert bob.post(f"{gradio}/cancel", json=ends).status_code == 404
        assert bob.post(f"{gradio}/reset", json={"event_id": later}).status_code == 404
        assert bob.post(f"{gradio}/queue/join", json=call | {"session_hash": "ann~anns"}).status_code == 400
        assert "process_completed" in ann.get(data).text
        assert "event: complete" in ann.get(f"{gradio}/call/catalog/{later}").text
