"""The page of all runs in a real browser: every button, and hostile names."""

from __future__ import annotations

import json
import random
import re
import time
import zipfile
from pathlib import Path

from gradio_client import Client
from playwright.sync_api import Locator, Page, Route, expect

from tests import made_up_runs
from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.ui.conftest import ServePage, Watched
from tests.ui.runs.conftest import HOSTILE, NUM_RUNS
from tools.page_driver import Server


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
    return set(page.locator(f".ddp-list-row {part}").all_inner_texts())


def select(page: Page, *indices: int) -> list[str]:
    ids = shown_ids(page)
    for index in indices:
        page.locator(f'[data-run="{ids[index]}"] input').check()
    return [ids[index] for index in indices]


def open_menu(page: Page, run_id: str) -> Locator:
    page.locator(f'[data-run="{run_id}"] .ddp-more-button').click()
    return page.locator(".ddp-menu")


def test_a_click_on_a_title_sorts_and_searches_and_choices_filter(page: Page) -> None:
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

    page.get_by_role("searchbox").press_sequentially("MADE 1")
    wanted = sum("1" in f"{number}" for number in range(NUM_RUNS)) + 1  # the hostile name contains a 1
    expect(page.locator(".ddp-shown")).to_have_text(f"{wanted} of {NUM_RUNS} runs")
    models = page.get_by_label("Model", exact=True)
    options = models.locator("option").all_inner_texts()
    models.select_option(label=next(text for text in options if text.startswith("MLP (")))
    wait_until("models of one kind", lambda: texts_of(page, ".ddp-cell-model") == {"MLP"}, ANSWER_TIMEOUT_S)
    shown = shown_ids(page)
    page.reload()
    expect(rows(page).first).to_be_visible()
    assert shown_ids(page) == shown, "the address holds the order and the filter"
    expect(page.get_by_role("searchbox")).to_have_value("MADE 1")
    page.get_by_role("searchbox").fill("no run is called so")
    expect(page.get_by_text("No run fits this filter.")).to_be_visible()
    page.locator(".ddp-nothing").get_by_role("button", name="Clear the filter").click()
    expect(page.locator(".ddp-shown")).to_have_text(f"{NUM_RUNS} runs")
    page.get_by_label("State", exact=True).select_option("failed")
    wait_until("failed runs alone", lambda: texts_of(page, ".ddp-pill") == {"failed"}, ANSWER_TIMEOUT_S)
    page.locator(".ddp-list-tools").get_by_role("button", name="Clear the filter").click()
    expect(page.locator(".ddp-shown")).to_have_text(f"{NUM_RUNS} runs")


def test_rename_tag_and_note_or_what_cannot_be_saved(page: Page, watched: Watched, shelf: Path) -> None:
    run_id = shown_ids(page)[3]
    open_menu(page, run_id).get_by_role("button", name="Rename").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("y" * 41)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("at most 40 characters")
    watched.complaints.clear()  # the browser logs the refusal
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


def test_delete_undo_delete_and_empty(page: Page, page_server: Server, shelf: Path) -> None:
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


def test_the_page_of_a_deleted_run(page: Page, page_server: Server, watched: Watched) -> None:
    run_id = shown_ids(page)[4]
    page.route(re.compile(r"/stream\?"), lambda route: route.abort())
    page.route(re.compile(r"/poll\?"), lambda route: route.fulfill(status=404, body="{}"), times=1)
    with page.expect_response(lambda response: response.status == 404):
        page.goto(f"{page_server.address}/run?id={run_id}")
    title = page.get_by_role("heading", level=1)
    expect(page.locator(".ddp-pill")).to_be_visible()
    expect(title).not_to_contain_text("cannot be shown")
    page.unroute_all()
    page.reload()
    expect(page.locator(".ddp-pill")).to_be_visible()
    Client(page_server.address, verbose=False).predict([run_id], api_name="/delete_runs")
    expect(title).to_have_text(f"The run {run_id} cannot be shown.")
    expect(page.locator("main")).to_contain_text("but there is no run of this id.")
    expect(page.locator("main")).not_to_contain_text("Trying again")
    page.get_by_role("link", name="bin").click()
    page.get_by_role("button", name=re.compile("^Restore")).click()
    expect(page.get_by_text("The bin is empty.")).to_be_visible()
    watched.complaints.clear()  # the browser logs each 404 and the aborted stream


def test_the_selection_has_a_bar_and_opens_curves_and_differences(page: Page) -> None:
    bar = page.get_by_role("region", name="Selected runs")
    expect(bar).to_be_hidden()
    (first,) = select(page, 0)
    again = bar.get_by_role("link", name="Run again with changes")
    expect(again).to_have_attribute("href", re.compile(rf"/\?from={first}$"))
    expect(page.locator(".ddp-selection .ddp-button-main")).to_have_attribute("aria-disabled", "true")
    page.get_by_label("Select all runs shown").check()
    expect(bar).to_contain_text("Up to 8 can be compared.")
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_hidden()

    ids = select(page, 0, 1, 2)
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    assert page.url.endswith(f"?compare={','.join(ids)}")
    page.go_back()
    expect(page.locator(".ddp-selection")).to_contain_text("3 runs selected")
    page.go_forward()
    wait_until("three curves", lambda: len(curves(page)) == 3 and all(curves(page)), ANSWER_TIMEOUT_S)
    table = page.locator(".ddp-compare-table")
    expect(table.locator("thead th")).to_have_count(3)
    expect(table).to_contain_text("Seed")
    expect(table).not_to_contain_text("Epochs")
    expect(table).to_contain_text(HOSTILE)
    chosen, titles = page.get_by_role("group", name="Curves"), page.locator(".ddp-compare-chart h3")
    expect(titles).to_have_text(["Training loss"])
    chosen.get_by_role("button", name="validation accuracy").click()
    expect(titles).to_have_text(["Training loss", "Validation accuracy"])
    chosen.get_by_role("button", name="validation accuracy").click()
    chosen.get_by_role("button", name="training loss").click()
    expect(titles).to_have_text(["Training loss"])  # the last one stays
    page.get_by_label("Smoothing", exact=True).select_option("0")
    wait_until("every step of every run", lambda: curves(page) == [130] * 3, ANSWER_TIMEOUT_S)
    layout = "document.querySelector('.js-plotly-plot').layout"
    page.get_by_label("Scale").select_option("log")
    page.wait_for_function(f"() => {layout}.yaxis.type === 'log'")
    over = page.get_by_label("Drawn over")
    over.select_option("samples")
    page.wait_for_function(f"() => {layout}.xaxis.title.text === 'samples trained on, all ranks together'")
    over.select_option("epochs")
    page.wait_for_function(f"() => {layout}.xaxis.title.text === 'epochs'")
    over.select_option("time")
    page.wait_for_function(f"() => {layout}.xaxis.type === 'date'")
    page.reload()
    wait_until("the same after a reload", lambda: len(curves(page)) == 3, ANSWER_TIMEOUT_S)


def curves(page: Page) -> list[int]:
    counts: list[int] = page.evaluate(
        "() => (document.querySelector('.js-plotly-plot')?.data ?? []).map(trace => trace.x.length)"
    )
    return counts


def test_each_export_gives_a_file(page: Page) -> None:
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
    page.wait_for_function("() => window.scrollY === 600")
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


def test_an_empty_page_says_what_to_do(serve_page: ServePage, page: Page, tmp_path: Path) -> None:
    server = serve_page(tmp_path / "none")
    page.goto(f"{server.address}/runs")
    button = page.get_by_role("link", name="Start the first run")
    expect(button).to_be_visible()
    expect(page.locator(".ddp-list-tools")).to_be_hidden()
    button.click()
    page.wait_for_url(f"{server.address}/")
    page.goto(f"{server.address}/?from=no-such-run")
    said = page.get_by_label("The form could not be filled in")
    expect(said).to_have_value(re.compile("from that run: run_id is 'no-such-run', but there is no run"))
