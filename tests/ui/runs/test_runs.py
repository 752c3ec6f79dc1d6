"""The page of all runs in a real browser: every button, and hostile names."""

from __future__ import annotations

import io
import json
import os
import random
import re
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from playwright.sync_api import Locator, Page, Route, expect

from tests import made_up_runs
from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.ui.conftest import Watched
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

HOSTILE = "<img src=x onerror=alert(1)>"
NUM_RUNS = 30


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a separate runs directory with synthetic runs; the last one has a hostile name."""
    folder = tmp_path_factory.mktemp("shelf") / "runs"
    made_up_runs.make(folder, NUM_RUNS, 130)
    config = RunDirectory(newest(folder)).config
    config.write_text(json.dumps(json.loads(config.read_text()) | {"name": HOSTILE}))
    return folder


@pytest.fixture(scope="module")
def page_server(shelf: Path) -> Iterator[Server]:
    with page_driver.serve(shelf, page_driver.NO_STANDBY) as served:
        yield served


@pytest.fixture
def page(watched: Watched, page_server: Server) -> Iterator[Page]:
    watched.page.goto(f"{page_server.address}/runs")
    expect(rows(watched.page).first).to_be_visible()
    # On its first start, a server reads the runs incrementally.
    expect(watched.page.get_by_text("Reading runs for the first time")).to_be_hidden()
    yield watched.page
    assert watched.foreign_requests == []
    assert watched.complaints == []
    assert watched.page.locator("img[src=x]").count() == 0


def newest(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.name.endswith(f"-{NUM_RUNS - 1}"))


def rows(page: Page) -> Locator:
    return page.locator(".ddp-list-row")


def shown_ids(page: Page) -> list[str]:
    """Return the IDs of the rows on the page, from top to bottom."""
    ids: list[str] = page.evaluate(
        "() => [...document.querySelectorAll('.ddp-list-row')]"
        ".sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map(row => row.dataset.run)"
    )
    return ids


def texts_of(page: Page, part: str) -> set[str]:
    """Return the different texts of one part of all rows."""
    return set(page.locator(f".ddp-list-row {part}").all_inner_texts())


def select(page: Page, *indices: int) -> list[str]:
    """Select rows by index and return their IDs."""
    ids = shown_ids(page)
    for index in indices:
        page.locator(f'[data-run="{ids[index]}"] input').check()
    return [ids[index] for index in indices]


def open_menu(page: Page, run_id: str) -> Locator:
    page.locator(f'[data-run="{run_id}"] .ddp-more-button').click()
    return page.locator(".ddp-menu")


def test_a_click_on_a_title_sorts_and_another_turns_round(page: Page) -> None:
    assert [int(run_id.rpartition("-")[2]) for run_id in shown_ids(page)[:5]] == [29, 28, 27, 26, 25]
    head = page.get_by_role("columnheader", name="Started")
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert [int(run_id.rpartition("-")[2]) for run_id in shown_ids(page)[:3]] == [0, 1, 2]
    head = page.get_by_role("columnheader", name="Loss", exact=True)
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    losses = [float(text) for text in page.locator(".ddp-list-row .ddp-cell-loss").all_inner_texts()]
    assert losses == sorted(losses)
    assert page.url.endswith("?sort=loss")


def test_search_and_choices_filter_and_are_in_the_address(page: Page) -> None:
    page.get_by_role("searchbox").press_sequentially("MADE 1")
    wanted = sum("1" in f"{number}" for number in range(NUM_RUNS)) + 1  # the hostile name contains a 1
    expect(page.locator(".ddp-shown")).to_have_text(f"{wanted} of {NUM_RUNS} runs")
    page.get_by_label("Model", exact=True).select_option(label=re_option(page, "Model", "MLP ("))
    wait_until("models of one kind", lambda: texts_of(page, ".ddp-cell-model") == {"MLP"}, ANSWER_TIMEOUT_S)
    shown = shown_ids(page)
    page.reload()
    expect(rows(page).first).to_be_visible()
    assert shown_ids(page) == shown, "the address holds the filter"
    expect(page.get_by_role("searchbox")).to_have_value("MADE 1")
    page.get_by_role("searchbox").fill("no run is called so")
    expect(page.get_by_text("No run fits this filter.")).to_be_visible()
    page.locator(".ddp-nothing").get_by_role("button", name="Clear the filter").click()
    expect(page.locator(".ddp-shown")).to_have_text(f"{NUM_RUNS} runs")
    page.get_by_label("State", exact=True).select_option("failed")
    wait_until("failed runs alone", lambda: texts_of(page, ".ddp-pill") == {"failed"}, ANSWER_TIMEOUT_S)
    page.locator(".ddp-list-tools").get_by_role("button", name="Clear the filter").click()
    expect(page.locator(".ddp-shown")).to_have_text(f"{NUM_RUNS} runs")


def re_option(page: Page, label: str, begins: str) -> str:
    texts = page.get_by_label(label, exact=True).locator("option").all_inner_texts()
    return next(text for text in texts if text.startswith(begins))


def test_rename_tag_and_note(page: Page, shelf: Path) -> None:
    run_id = shown_ids(page)[3]
    open_menu(page, run_id).get_by_role("button", name="Rename").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(f"{HOSTILE} two")
    dialog.get_by_label("Tags").fill(f"good, {HOSTILE}")
    dialog.get_by_label("Note").fill("x" * 10)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    row = page.locator(f'[data-run="{run_id}"]')
    expect(row.get_by_role("link").first).to_have_text(f"{HOSTILE} two")
    expect(row.locator(".ddp-tag")).to_have_text(["good", HOSTILE])
    expect(row).to_contain_text("xxxxxxxxxx")
    written = json.loads((shelf / run_id / "notes.json").read_text())
    assert written == {"name": f"{HOSTILE} two", "tags": ["good", HOSTILE], "note": "x" * 10}
    page.get_by_label("Tag", exact=True).select_option("good")
    assert shown_ids(page) == [run_id]
    page.get_by_role("searchbox").fill("xxxx onerror")
    assert shown_ids(page) == [run_id], "name and note are searched"


def test_what_cannot_be_saved_is_said_in_the_dialog(page: Page, watched: Watched) -> None:
    open_menu(page, shown_ids(page)[2]).get_by_role("button", name="Rename").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("y" * 41)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("at most 40 characters")
    assert [words for words in watched.complaints if "500" not in words] == []
    watched.complaints.clear()  # the browser logs each refusal
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_delete_undo_delete_restore_and_empty(page: Page, page_server: Server, shelf: Path) -> None:
    ids = select(page, 5, 6)
    page.get_by_role("region", name="Selected runs").get_by_role("button", name="Delete").click()
    expect(page.locator(f'[data-run="{ids[0]}"]')).to_have_count(0)
    assert not (shelf / ids[0]).exists()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(f'[data-run="{ids[0]}"]')).to_be_visible()
    assert (shelf / ids[1] / "config.json").is_file()

    open_menu(page, ids[0]).get_by_role("button", name="Delete").click()
    expect(page.locator(f'[data-run="{ids[0]}"]')).to_have_count(0)
    page.get_by_role("link", name="Bin").click()
    expect(page.get_by_role("button", name=re.compile("^Restore"))).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("The bin is empty.")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    open_menu(page, ids[0]).get_by_role("button", name="Delete").click()
    expect(page.locator(f'[data-run="{ids[0]}"]')).to_have_count(0)
    page.get_by_role("link", name="Bin").click()
    page.get_by_role("button", name=re.compile("^Restore")).click()
    expect(page.get_by_text("The bin is empty.")).to_be_visible()
    page.get_by_role("link", name="All runs").click()
    expect(page.locator(f'[data-run="{ids[0]}"]')).to_be_visible()

    open_menu(page, ids[1]).get_by_role("button", name="Delete").click()
    expect(page.locator(f'[data-run="{ids[1]}"]')).to_have_count(0)
    page.goto(f"{page_server.address}/runs?bin=1")
    page.get_by_role("button", name=re.compile(r"Empty the bin \(\d+ kB\)")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 run with all checkpoints and logs will be deleted")
    dialog.get_by_role("button", name="Cancel").click()
    assert (shelf / ".bin" / ids[1]).is_dir(), "nothing happens before the answer"
    page.get_by_role("button", name=re.compile("Empty the bin")).click()
    page.get_by_role("dialog").get_by_role("button", name="permanently").click()
    expect(page.get_by_text("The bin is empty.")).to_be_visible()
    assert not (shelf / ".bin" / ids[1]).exists()


def test_one_404_from_a_proxy_does_not_end_the_page_of_a_run(
    page: Page, page_server: Server, watched: Watched
) -> None:
    page.route(re.compile(r"/stream\?"), lambda route: route.abort())
    page.route(re.compile(r"/poll\?"), lambda route: route.fulfill(status=404, body="{}"), times=1)
    with page.expect_response(lambda response: response.status == 404):
        page.goto(f"{page_server.address}/run?id={shown_ids(page)[3]}")
    expect(page.locator(".ddp-pill")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("cannot be shown")
    watched.complaints.clear()  # the browser logs the 404 and the aborted stream


def test_the_page_of_a_run_that_is_deleted_leads_to_the_bin(
    page: Page, page_server: Server, watched: Watched
) -> None:
    run_id = shown_ids(page)[4]
    page.goto(f"{page_server.address}/run?id={run_id}")
    expect(page.locator(".ddp-pill")).to_be_visible()
    Client(page_server.address, verbose=False).predict([run_id], api_name="/delete_runs")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"The run {run_id} cannot be shown.")
    expect(page.locator("main")).to_contain_text("but there is no run of this id.")
    expect(page.locator("main")).not_to_contain_text("Trying again")
    page.get_by_role("link", name="bin").click()
    page.get_by_role("button", name=re.compile("^Restore")).click()
    expect(page.get_by_text("The bin is empty.")).to_be_visible()
    watched.complaints.clear()  # the browser logs the 404


def test_a_run_that_goes_on_is_not_deleted(page: Page, shelf: Path) -> None:
    run = RunDirectory(shelf / shown_ids(page)[1])
    before = liveness.read_status(run)
    owner = run.acquire_lock()
    try:
        status = json.loads(run.status.read_text())
        run.status.write_text(json.dumps(status | {"state": "running"}))
        run.write_status(liveness.read_status(run))
        pill = page.locator(f'[data-run="{run.run_id}"] .ddp-pill')
        page.reload()
        expect(pill).to_have_text("running")
        open_menu(page, run.run_id).get_by_role("button", name="Delete").click()
        expect(page.locator(".ddp-toast-error")).to_contain_text("is running: stop it first")
        assert run.config.is_file()
    finally:
        run.write_status(before)
        os.close(owner)


def test_selecting_some_opens_their_curves_and_differences(page: Page) -> None:
    select(page, 0)
    compare = page.get_by_role("link", name="Compare")
    expect(page.locator(".ddp-selection .ddp-button-main")).to_have_attribute("aria-disabled", "true")
    ids = [shown_ids(page)[0], *select(page, 1, 2)]
    compare.click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    assert page.url.endswith(f"?compare={','.join(ids)}")
    page.go_back()
    expect(page.locator(".ddp-selection")).to_contain_text("3 runs selected")
    page.go_forward()
    wait_until("three curves", lambda: len(curves(page)) == 3 and all(curves(page)), ANSWER_TIMEOUT_S)
    expect(page.locator(".ddp-compare-table thead th")).to_have_count(3)
    expect(page.locator(".ddp-compare-table")).to_contain_text("Seed")
    expect(page.locator(".ddp-compare-table")).not_to_contain_text("Epochs")
    expect(page.locator(".ddp-compare-table")).to_contain_text(HOSTILE)
    chosen = page.get_by_role("group", name="Curves")
    titles = page.locator(".ddp-compare-chart h3")
    expect(titles).to_have_text(["Training loss"])
    chosen.get_by_role("button", name="validation accuracy").click()
    expect(titles).to_have_text(["Training loss", "Validation accuracy"])
    chosen.get_by_role("button", name="validation accuracy").click()
    expect(titles).to_have_text(["Training loss"])
    chosen.get_by_role("button", name="training loss").click()
    expect(titles).to_have_text(["Training loss"])
    page.get_by_label("Smoothing", exact=True).select_option("0")
    wait_until("every step of every run", lambda: curves(page) == [130] * 3, ANSWER_TIMEOUT_S)
    layout = "() => document.querySelector('.js-plotly-plot').layout"
    page.get_by_label("Scale").select_option("log")
    wait_until(
        "a logarithmic scale", lambda: page.evaluate(layout)["yaxis"]["type"] == "log", ANSWER_TIMEOUT_S
    )
    for over, words in (("samples", "samples trained on, all ranks together"), ("epochs", "epochs")):
        page.get_by_label("Drawn over").select_option(over)
        wait_until(
            over,
            lambda words=words: page.evaluate(layout)["xaxis"]["title"]["text"] == words,
            ANSWER_TIMEOUT_S,
        )
    page.get_by_label("Drawn over").select_option("time")
    axis = "() => document.querySelector('.js-plotly-plot').layout.xaxis.type"
    wait_until("an axis of time", lambda: page.evaluate(axis) == "date", ANSWER_TIMEOUT_S)
    page.reload()
    wait_until("the same after a reload", lambda: len(curves(page)) == 3, ANSWER_TIMEOUT_S)
    page.go_back()
    expect(rows(page).first).to_be_visible()


def curves(page: Page) -> list[int]:
    """Return the number of points of each drawn curve."""
    counts: list[int] = page.evaluate(
        "() => (document.querySelector('.js-plotly-plot')?.data ?? []).map(trace => trace.x.length)"
    )
    return counts


def test_the_bar_of_the_selection(page: Page) -> None:
    bar = page.get_by_role("region", name="Selected runs")
    expect(bar).to_be_hidden()
    (run_id,) = select(page, 0)
    expect(bar.get_by_role("link", name="Run again with changes")).to_have_attribute(
        "href", re.compile(rf"/\?from={run_id}$")
    )
    page.get_by_label("Select all runs shown").check()
    expect(bar).to_contain_text("runs selected")
    expect(bar).to_contain_text("Up to 8 can be compared.")
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_hidden()


def test_an_address_that_names_no_run_says_so(page_server: Server, watched: Watched) -> None:
    watched.page.goto(f"{page_server.address}/?from=no-such-run")
    said = watched.page.get_by_label("The form could not be filled in")
    expect(said).to_have_value(re.compile("from that run: run_id is 'no-such-run', but there is no run"))


def test_each_export_gives_a_file(page: Page, page_server: Server) -> None:
    run_id = shown_ids(page)[4]
    for words, ending in (("CSV", ".csv"), ("JSON", ".json"), ("TensorBoard", f".{run_id}")):
        link = open_menu(page, run_id).get_by_role("link", name=words)
        with page.expect_download() as downloading:
            link.click()
        assert downloading.value.suggested_filename.endswith(ending)
        assert Path(downloading.value.path()).stat().st_size > 1000
    ids = select(page, 4, 7)
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as downloading:
        page.locator(".ddp-menu").get_by_role("link", name="CSV").click()
    with zipfile.ZipFile(downloading.value.path()) as archive:
        assert archive.namelist() == ["runs.csv", *(f"{run_id}.csv" for run_id in ids)]
    with (
        urllib.request.urlopen(
            f"{page_server.address}/live/runs/export.zip?kind=tfevents&ids={ids[0]}"
        ) as answer,
        zipfile.ZipFile(io.BytesIO(answer.read())) as archive,
    ):
        assert archive.namelist()[0].startswith(f"{ids[0]}/events.out.tfevents.")


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.get_by_role("searchbox").focus()
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("() => document.activeElement.ariaLabel || document.activeElement.innerText"))
    assert {"Select all runs shown", "Started", "State"} <= {words.rstrip("▼▲").strip() for words in seen}
    assert any(words.startswith("Actions for") for words in seen)
    page.locator(".ddp-more-button").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".ddp-menu button").first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".ddp-menu a").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".ddp-more-button").first).to_be_focused()


def test_a_new_run_does_not_move_what_is_in_sight(page: Page, shelf: Path) -> None:
    page.set_viewport_size({"width": 1440, "height": 500})
    page.evaluate("() => window.scrollTo(0, 600)")
    middle = "() => document.elementFromPoint(400, 250).closest('.ddp-list-row')?.dataset.run ?? null"
    wait_until(
        "rows to be drawn there", lambda: page.evaluate("() => window.scrollY") == 600, ANSWER_TIMEOUT_S
    )
    page.wait_for_function(f"() => ({middle})() !== null")
    before = page.evaluate(middle)
    total = page.locator(".ddp-shown").inner_text()
    made = made_up_runs.make_one(shelf, 9999, 20, time.time(), random.Random(1))
    expect(page.locator(".ddp-shown")).not_to_have_text(total)
    assert page.evaluate(middle) == before
    page.evaluate("() => window.scrollTo(0, 0)")
    expect(rows(page).first).to_have_attribute("data-run", made)


def test_a_list_that_has_not_come_yet_is_not_said_to_be_empty(page: Page, page_server: Server) -> None:
    held: list[Route] | None = []
    page.route("**/live/runs*", lambda route: route.continue_() if held is None else held.append(route))
    with page.expect_response("**/live/me") as who:
        page.goto(f"{page_server.address}/runs")
    who.value.finished()  # the user is known now, but not the list
    expect(page.get_by_text("Reading the list …")).to_be_visible()
    expect(page.get_by_text("No run yet.")).to_be_hidden()
    waiting, held = held, None  # later requests are answered
    for route in waiting:
        route.continue_()
    expect(page.locator(".ddp-list-row").first).to_be_visible()


def test_an_empty_page_says_what_to_do(watched: Watched, tmp_path: Path) -> None:
    with page_driver.serve(tmp_path / "none", page_driver.NO_STANDBY) as server:
        watched.page.goto(f"{server.address}/runs")
        button = watched.page.get_by_role("link", name="Start the first run")
        expect(button).to_be_visible()
        expect(watched.page.locator(".ddp-list-tools")).to_be_hidden()
        button.click()
        watched.page.wait_for_url(f"{server.address}/")


def test_nothing_is_wider_than_a_phone(page: Page, page_server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ids = shown_ids(page)
    for path in ("", f"?compare={','.join(ids[:4])}", "?bin=1"):
        page.goto(f"{page_server.address}/runs{path}")
        page.locator(".ddp-runs-page h1").wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
