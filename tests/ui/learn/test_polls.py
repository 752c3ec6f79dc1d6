"""Polls of a class: a teacher and two students share one run; and a poll that phones answer."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from ddp_gui.auth.rights import Person
from tests.harness import all_events
from tests.ui.auth.test_class import enter
from tests.ui.conftest import PHONE, NewContext, ServePage, assert_usable, kill_runs, serve
from tests.ui.learn import lessons
from tests.unit import class_of
from tests.unit.class_of import ANN, BOB, EVE
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

WIDE: ViewportSize = {"width": 1440, "height": 900}
PROJECTOR: ViewportSize = {"width": 1920, "height": 1080}


@pytest.fixture(scope="module")
def class_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    runs_dir = tmp_path_factory.mktemp("polls") / "runs"
    yield runs_dir
    kill_runs(runs_dir)


@pytest.fixture(scope="module")
def school(class_runs: Path) -> Iterator[Server]:
    """Serve the lessons to a class with logins, in which users see only their own runs."""
    folder = lessons.write(class_runs.parent / "lessons")
    accounts = class_of.make(class_runs.parent / "accounts.json").path
    with serve(class_runs, "--lessons", str(folder), "--auth-file", str(accounts)) as served:
        yield served


Visit = Callable[..., Page]


@pytest.fixture
def visit(new_context: NewContext) -> Visit:
    """Return a function that opens a blank page in the browser of a user, or of nobody in particular."""

    def open_one(server: Server, person: Person | None = None, viewport: ViewportSize = WIDE) -> Page:
        context = new_context(viewport=viewport)
        if person is not None:
            enter(context.request, server.address, person)
        return context.new_page()

    return open_one


def predict(page: Page, choice: str) -> None:
    region = page.get_by_role("region", name="1. Predict")
    region.get_by_label(choice).check()
    page.get_by_role("button", name="Lock my prediction").click()
    expect(region).to_contain_text("Your prediction is locked.")


def ask(page: Page, server: Server, endpoint: str, *values: object) -> str:
    """Call an endpoint with the page's session; return the text of the response."""
    address = f"{server.address}/gradio_api/run/{endpoint}"
    return page.request.post(address, data={"data": list(values)}).text()


def runs_shown(page: Page) -> list[str]:
    links = page.locator(".ddp-lesson-runs").first.locator("a")
    return [str(link.get_attribute("href")) for link in links.all()]


def test_a_class_predicts_and_watches_one_run(school: Server, visit: Visit, class_runs: Path) -> None:
    eve, ann, bob = (visit(school, person) for person in (EVE, ANN, BOB))
    assert '"everyone_sees":false' in ask(eve, school, "class_settings", {"everyone_sees": False})
    ann.goto(f"{school.address}/learn")
    eve.goto(f"{school.address}/learn?lesson=chosen")
    eve.get_by_role("button", name="Open as a poll").click()
    expect(eve.get_by_text("Open for predictions.")).to_be_visible()
    poll_id = eve.url.rpartition("poll=")[2]
    projector = visit(school, EVE, PROJECTOR)
    projector.goto(f"{school.address}/learn?poll={poll_id}&projector=1")
    ann.get_by_role("link", name="Join").click()
    # The URL of the QR code leads logged-in users to the lesson.
    bob.goto(f"{school.address}/poll?id={poll_id}")
    for page, choice in ((ann, "the first"), (bob, "neither")):
        predict(page, choice)
        expect(page.get_by_text("The runs are started once for everybody.")).to_be_visible()
        expect(page.get_by_role("button", name="Start both runs")).to_be_hidden()
    for page in (eve, projector):
        expect(page.get_by_text("2 predictions", exact=True)).to_be_visible()
        expect(page.get_by_text("shown when the poll is closed")).to_be_visible()
        expect(page.locator(".ddp-poll-bars")).to_be_hidden()
        assert page.request.get(f"{school.address}/live/polls/{poll_id}").json()["results"] is None
        page.get_by_role("button", name="Show predictions as they come in").click()
        expect(page.locator(".ddp-poll-bars li")).to_have_text(
            ["the firstwhat happened1 · 50%", "neitherwhat happened1 · 50%"]
        )
        expect(page.get_by_text("what happened").first).to_be_hidden()
        assert_usable(page)
    expect(projector.get_by_text("ann", exact=True)).to_have_count(0)
    eve.get_by_text("Who predicted what").click()
    expect(eve.get_by_role("row", name="ann")).to_contain_text("the first")
    eve.get_by_role("button", name="Close the poll").click()
    expect(ann.get_by_text("The poll is closed.")).to_be_visible()
    eve.get_by_role("button", name="Start the runs for everybody").click()
    for page in (eve, ann, bob, projector):
        rows = page.locator(".ddp-lesson-runs").first.locator(".ddp-lesson-run-row")
        expect(rows).to_have_count(2)
        for row in rows.all():
            expect(row).to_contain_text("finished")
    assert len(set(map(tuple, map(runs_shown, (eve, ann, bob, projector))))) == 1
    assert len(list(class_runs.glob("*/config.json"))) == 2, "one of each for all"
    expect(bob.get_by_text("Your prediction was correct.")).to_be_visible()
    expect(ann.get_by_text("The result differs from your prediction.")).to_be_visible()
    expect(projector.locator('[data-outcome="right"]')).to_contain_text("neitherwhat happened")
    expect(projector.get_by_text("Both see the same.")).to_be_visible()
    assert_usable(projector)
    assert_usable(ann)
    # Bob's progress is available on another device.
    phone = visit(school, BOB, PHONE)
    phone.goto(f"{school.address}/learn?lesson=chosen")
    expect(phone.get_by_label("neither")).to_be_checked()
    with phone.expect_response("**/run/keep_progress"):
        phone.get_by_role("region", name="5. Check").get_by_label("not so").check()
    expect(phone.get_by_text("That is why.")).to_be_visible()
    assert_usable(phone)
    bob.reload()
    expect(bob.get_by_text("That is why.")).to_be_visible()
    table = eve.request.get(f"{school.address}/live/learn/class.csv")
    rows = {row["person"]: row for row in csv.DictReader(io.StringIO(table.text()))}
    assert rows.keys() == {"ann", "bob"}
    assert (rows["ann"]["prediction"], rows["ann"]["prediction_is_right"]) == ("the first", "no")
    assert (rows["bob"]["answers"], rows["bob"]["in_poll"]) == ("1: not so", poll_id)
    phone.get_by_role("button", name="Do it again", exact=True).click()
    expect(phone.get_by_label("neither")).not_to_be_checked()
    eve.get_by_role("button", name="End the poll").click()
    expect(ann.get_by_text("The poll has ended.")).to_be_visible()
    assert bob.request.get(f"{school.address}/live/polls/{poll_id}").status == 404


def test_a_lesson_commands_the_class_s_run_once(school: Server, visit: Visit, class_runs: Path) -> None:
    eve, ann = visit(school, EVE), visit(school, ANN)
    eve.goto(f"{school.address}/learn?lesson=commanded")
    eve.get_by_role("button", name="Open as a poll").click()
    expect(eve.get_by_text("Open for predictions.")).to_be_visible()
    poll_id = eve.url.rpartition("poll=")[2]
    ann.goto(f"{school.address}/learn?lesson=commanded&poll={poll_id}")
    predict(ann, "neither")
    eve.get_by_role("button", name="Close the poll").click()
    eve.get_by_role("button", name="Start the runs for everybody").click()
    (link,) = eve.locator(".ddp-lesson-run-row a").all()
    expect(link).to_be_visible()
    run = RunDirectory(class_runs / str(link.get_attribute("href")).rpartition("id=")[2])
    complaints: list[str] = []
    ann.on("response", lambda answer: complaints.extend([answer.url] if answer.status >= 400 else []))
    for page in (eve, ann):
        expect(page.locator(".ddp-lesson-run-row").first).to_contain_text("finished")
        expect(page.get_by_text("Trying again")).to_have_count(0)
    assert complaints == []
    commands = [event for event in all_events(run) if event["kind"] == "command"]
    assert [(each["name"], each["arguments"]) for each in commands] == [
        ("slow_rank", {"rank": 0, "delay_ms": 4})
    ]
    # The pictures of the lesson are also shown in the poll.
    expect(eve.get_by_text("What each rank holds.")).to_be_visible()
    expect(eve.locator(".ddp-lesson-instruments").last).to_contain_text("identical")


def test_phones_answer_without_names(serve_page: ServePage, visit: Visit, tmp_path: Path) -> None:
    folder = lessons.write(tmp_path / "lessons")
    open_hall = serve_page(tmp_path / "runs", "--lessons", str(folder), "--polls")
    teacher, phone = visit(open_hall), visit(open_hall, None, PHONE)
    teacher.goto(f"{open_hall.address}/learn?lesson=drawn")
    teacher.get_by_role("button", name="Open as a poll").click()
    card = teacher.get_by_role("region", name="Predict with us")
    expect(card).to_contain_text(
        "phones cannot reach it. Start it for other devices with: python app.py --host 0.0.0.0 --polls"
    )
    assert_usable(teacher)
    poll_id = teacher.url.rpartition("poll=")[2]
    phone.goto(f"{open_hall.address}/poll?id={poll_id}")
    expect(phone.get_by_role("navigation")).to_have_count(0)
    phone.get_by_role("slider").first.focus()
    phone.keyboard.press("End")
    assert_usable(phone)
    phone.get_by_role("button", name="Lock my prediction").click()
    expect(phone.get_by_text("Thank you.")).to_be_visible()
    expect(teacher.get_by_text("1 prediction", exact=True)).to_be_visible()
    expect(teacher.locator(".ddp-poll-curves polyline")).to_have_count(0)
    teacher.get_by_role("button", name="Show predictions as they come in").click()
    expect(teacher.locator(".ddp-poll-curves polyline")).to_have_count(1)
    expect(teacher.get_by_text("Who predicted what")).to_have_count(0)
    phone.reload()
    expect(phone.get_by_text("Your prediction is locked.")).to_be_visible()
    kept = phone.evaluate(f"JSON.parse(localStorage.getItem('ddp:poll:{poll_id}'))")
    assert "cannot be changed" in ask(phone, open_hall, "answer_poll", poll_id, [1.0] * 9, kept["token"])
    teacher.get_by_role("button", name="Close the poll").click()
    expect(phone.get_by_text("The poll is closed.")).to_be_visible()
