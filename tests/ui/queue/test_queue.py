"""The queue in a real browser, with real runs: waiting runs start automatically, even after a crash."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import ENDLESS, NewPage, Watched, assert_accessible, kill_runs, serve
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

ANYTHING = re.compile("")
# The steps that the loss chart has drawn.
DRAWN = """Array.from(
  document.querySelector('[data-chart="loss"] .js-plotly-plot')?.data?.find(
    (trace) => trace.name.startsWith("training"))?.x ?? [])"""
TWO_RANKS = ("--cpu-ranks", "2")  # in all runs together


@pytest.fixture
def own_runs(tmp_path: Path) -> Iterator[Path]:
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    yield runs_dir
    kill_runs(runs_dir)


def last_step(run: RunDirectory) -> int:
    return max((event["step"] for event in all_events(run) if event["kind"] == "step"), default=0)


def names_in_line(page: Page) -> list[str]:
    return page.locator(".ddp-waiting .ddp-queue-run a").all_inner_texts()


def test_who_waits_starts_by_itself_also_when_the_page_was_killed(own_runs: Path, new_page: NewPage) -> None:
    watched = Watched(new_page())
    page = watched.page
    with serve(own_runs, *TWO_RANKS) as server:
        client = Client(server.address, verbose=False)
        first = client.predict(ENDLESS, api_name="/start_run")
        assert first["place"] is None
        placed = [client.predict(ENDLESS | {"name": name}, api_name="/start_run") for name in ("b", "c", "d")]
        assert [each["place"] for each in placed] == [1, 2, 3]
        assert placed[1]["message"].startswith("Waiting: 2nd in the queue")
        page.goto(f"{server.address}/queue")
        expect(page.locator(".ddp-waiting tbody tr")).to_have_count(3)
        wait_until("their order", lambda: names_in_line(page) == ["b", "c", "d"], ANSWER_TIMEOUT_S)
        page.get_by_role("button", name="Put first: d").click()
        wait_until("d being first", lambda: names_in_line(page) == ["d", "b", "c"], ANSWER_TIMEOUT_S)
        page.get_by_role("button", name="Remove from the queue: b").click()
        expect(page.locator(".ddp-waiting tbody tr")).to_have_count(2)
        assert_accessible(page)
        page.goto(f"{server.address}/run?id={placed[2]['run_id']}")
        expect(page.locator(".ddp-queued")).to_contain_text("1st in the queue")
        assert watched.complaints == []
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    waiting, trained = (RunDirectory(own_runs / each["run_id"]) for each in (placed[2], first))
    before = last_step(trained)
    wait_until("training without the page", lambda: last_step(trained) > before + 20, START_TIMEOUT_S)
    assert liveness.read_status(waiting).state == "queued", "it waits without a page, too"
    with serve(own_runs, *TWO_RANKS) as server:
        client = Client(server.address, verbose=False)
        page.goto(f"{server.address}/run?id={first['run_id']}")
        # The curve has all steps, also those without a page.
        page.wait_for_function(f"(before) => {DRAWN}[0] === 1 && {DRAWN}.at(-1) > before", arg=before)
        client.predict(first["run_id"], False, api_name="/stop_run")
        wait_until(
            "the next one running", lambda: liveness.read_status(waiting).state == "running", START_TIMEOUT_S
        )
        page.goto(f"{server.address}/queue")
        expect(page.locator(".ddp-going-on tbody tr")).to_contain_text("d")
        page.get_by_role("button", name="Stop all").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop all").click()
        wait_until(
            "it having stopped", lambda: liveness.read_status(waiting).state == "stopped", START_TIMEOUT_S
        )
        expect(page.locator(".ddp-queue-paused")).to_be_visible()
        wait_until("c keeping its place", lambda: names_in_line(page) == ["c"], ANSWER_TIMEOUT_S)
        assert "A teacher has stopped all runs." in waiting.events.read_text()


def test_start_and_the_badge_on_every_page_say_who_waits(own_runs: Path, new_page: NewPage) -> None:
    watched = Watched(new_page())
    page = watched.page
    with serve(own_runs, *TWO_RANKS) as server:
        client = Client(server.address, verbose=False)
        page.goto(server.address)
        page.wait_for_selector(".ddp-equation")
        start, badge = page.locator("#start-button"), page.locator("#ddp-nav-queue a")
        height = start.evaluate("button => button.offsetHeight")
        expect(start).not_to_have_attribute("data-wait", ANYTHING)
        going_on = client.predict(ENDLESS, api_name="/start_run")
        expect(start).to_have_attribute("data-wait", re.compile("Waits: 1st in the queue"))
        assert start.evaluate("button => button.offsetHeight") == height, "it has the room"
        expect(badge).to_be_hidden()
        waiting = client.predict(ENDLESS, api_name="/start_run")
        expect(start).to_have_attribute("data-wait", re.compile("Waits: 2nd in the queue"))
        expect(badge).to_have_text("Queue (1)")
        for path in ("runs", "machine", "queue", f"run?id={going_on['run_id']}"):
            page.goto(f"{server.address}/{path}")
            expect(badge).to_have_text("Queue (1)")
        client.predict(going_on["run_id"], False, api_name="/stop_run")
        expect(badge).to_be_hidden()
        page.goto(server.address)
        expect(start).to_have_attribute("data-wait", re.compile("Waits: 1st in the queue"))
        client.predict(waiting["run_id"], False, api_name="/stop_run")
        expect(start).not_to_have_attribute("data-wait", ANYTHING)
        expect(badge).to_be_hidden()
        see_the_queue_fail(page, server, own_runs / ".class" / "queue.lock")
        assert watched.complaints == []


def see_the_queue_fail(page: Page, server: Server, lock: Path) -> None:
    """Check that the Queue page says why no run starts, and no longer when one can start again."""
    page.goto(f"{server.address}/queue")
    told = page.locator("main [role=status]", has_text="No run starts from the queue now: ")
    expect(page.locator(".ddp-waiting")).to_be_visible()
    expect(told).to_be_hidden()
    lock.unlink(missing_ok=True)
    lock.mkdir(parents=True)
    expect(told).to_be_visible()
    expect(told).to_contain_text("queue.lock")
    assert_accessible(page)
    lock.rmdir()
    expect(told).to_be_hidden()
