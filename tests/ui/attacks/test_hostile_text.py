"""Text of other users is shown as text: tags, scripts, terminal escapes, and bidirectional marks."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ddp_gui.http.shell import visible
from tests import made_run
from tests.hostile_words import ACTING, ENTITIES, NAME
from tests.ui.attacks.attacking import ask, assert_only_text
from tests.ui.conftest import NewPage, Watched
from tests.unit.ddp_gui.http.test_visible import MISUSED, NEEDED
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import write_json_atomically

LONG = "m" * 3_000


@pytest.fixture(scope="module")
def runs(runs_dir: Path) -> tuple[RunDirectory, RunDirectory]:
    """Return a run full of hostile text, as another user may have copied it here, and a plain run."""
    hostile, plain = RunDirectory(runs_dir / "hostile-1"), RunDirectory(runs_dir / "plain-1")
    for run in (hostile, plain):
        made_run.make_finished(run, 300)
    config = json.loads(hostile.config.read_text())
    hostile.config.write_text(json.dumps(config | {"name": NAME[:200], "label_column": ENTITIES}))
    write_json_atomically(
        hostile.path / "notes.json", {"name": NAME, "tags": ["<b>tag</b>", "תג"], "note": ACTING}
    )
    file = events.EventFile(hostile.events)
    now_s = max(event["time_unix_s"] for event in events.read_all(hostile.events)) + 1
    words = {"message": ACTING, "hint": ACTING, "code": "<b>", "rank": 0, "traceback": ACTING}
    device = dict.fromkeys(events.DEVICE_FIELDS)
    named = device | {"rank": 0, "node": 0, "kind": "cpu", "index": 0, "name": ACTING}
    command = {"id": "<i>", "name": ACTING, "step": 300, "accepted": False, "message": ACTING}
    happened: list[tuple[str, dict[str, Any]]] = [
        ("devices", {"devices": [named]}),
        ("warning", words),
        ("command", command),
        ("sample", {"step": 300, "type": "text", "content": ACTING}),
        ("error", words),
        ("newer_kind", {"message": ACTING}),
        ("eval", {"step": 300, "epoch": 13, "loss": 1.0, "metrics": {"accuracy": 0.5, LONG: 0.5}}),
        ("sample", {"step": 300, "type": "rows", "content": {"columns": [LONG], "rows": []}}),
        ("state", {"state": "failed", "reason": ACTING}),
    ]
    file.append((now_s, kind, fields) for kind, fields in happened)
    file.close()
    status = json.loads(hostile.status.read_text())
    write_json_atomically(hostile.status, status | {"state": "failed", "error": ACTING, "exit_code": 1})
    hostile.rank_log(0).write_text(f"{ACTING}\nbar 1%\rbar 2%\r\n" * 50, encoding="utf-8")
    return hostile, plain


@pytest.fixture
def guarded(new_page: NewPage) -> Watched:
    """Return a page that fails on dialogs and records every violation of its content security policy."""
    page = new_page()
    page.add_init_script("localStorage.setItem('ddp:tour', '\"seen\"')")
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog was opened: {dialog.message}"))
    return Watched(page)


def assert_quiet(guarded: Watched) -> None:
    assert_only_text(guarded.page)
    assert guarded.complaints == [] and guarded.foreign_requests == []


def open_at(page: Page, server: Server, path: str) -> Page:
    page.goto(f"{server.address}/{path}")
    return page


def test_lists_compare_and_the_bin_show_words_as_text(
    server: Server, guarded: Watched, runs: tuple[RunDirectory, RunDirectory]
) -> None:
    hostile, plain = runs
    page = open_at(guarded.page, server, "runs")
    shown, tags = page.locator("#ddp-runs"), "<img src=x onerror=alert(1)>"
    expect(shown).to_contain_text(tags)
    expect(shown).to_contain_text("<b>tag</b>")
    assert_quiet(guarded)
    query = "q=%3Cimg%20src=x%20onerror=alert(1)%3E&tag=%3Cb%3Etag%3C/b%3E&sort=%3Cscript%3E"
    open_at(page, server, f"runs?{query}")
    expect(shown).to_contain_text("שלום")
    assert_quiet(guarded)
    open_at(page, server, f"runs?compare={hostile.run_id},{plain.run_id},%3Cimg%20src=x%3E")
    expect(shown).to_contain_text(tags)
    page.locator(".js-plotly-plot").first.wait_for()
    assert_quiet(guarded)
    ids = {"data": [[hostile.run_id]]}
    assert ask(server, "POST", "/gradio_api/run/delete_runs", ids)[0] == 200
    open_at(page, server, "runs?bin")
    expect(shown).to_contain_text(tags)
    assert_quiet(guarded)
    assert ask(server, "POST", "/gradio_api/run/restore_runs", ids)[0] == 200


def test_the_run_s_page_shows_words_as_text(
    server: Server, guarded: Watched, runs: tuple[RunDirectory, RunDirectory]
) -> None:
    page = open_at(guarded.page, server, f"run?id={runs[0].run_id}")
    expect(page.locator("h1")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(page.locator("#ddp-run")).to_contain_text("⟨U+202E⟩gnp.exe")
    log = page.locator("#ddp-log-text")
    log.scroll_into_view_if_needed()
    expect(log).to_contain_text("⟨ESC⟩]0;title⟨U+0007⟩ ⟨U+0000⟩")
    expect(log).to_contain_text("bar 1%\nbar 2%")
    events_list = page.locator(".ddp-events-list")
    expect(events_list).to_contain_text("An event from a newer version of this program (newer")
    expect(events_list).not_to_contain_text("undefined")
    expect(page.get_by_role("option", name="m" * 29 + "…")).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") == 1440
    assert_quiet(guarded)
    page.get_by_label("Search this log").fill("<img onerror=alert(1)>")
    expect(page.locator("#ddp-log-text mark").first).to_be_visible()
    assert_quiet(guarded)


def test_the_form_shows_words_as_text(server: Server, guarded: Watched, tmp_path: Path) -> None:
    page = open_at(guarded.page, server, "")
    page.locator("#start-button").wait_for()
    page.get_by_label("Data set", exact=True).click()
    page.get_by_role("option", name="Your own data…").click()
    table = tmp_path / "<img src=x onerror=alert(1)>.csv"
    head = ["<script>alert(1)</script>", "\u202etxet", "=cmd|'/c calc'!A0", "label"]
    rows = [",".join(['"<a href=javascript:alert(1)>x</a>"', str(n), "1", "ab"[n % 2]]) for n in range(40)]
    table.write_text("\n".join([",".join(head), *rows]), encoding="utf-8")
    page.locator("#own-data input[type=file]").set_input_files(table)
    seen = page.locator("#own-data-seen")
    expect(seen).to_contain_text("<script>alert(1)</script>")
    expect(seen).to_contain_text("⟨U+202E⟩txet")
    assert_quiet(guarded)
    page.get_by_label("Path of your data").fill("<img src=x onerror=alert(1)><h1>big</h1>")
    page.locator("#start-button").click()
    toast = page.get_by_test_id("toast-body")
    expect(toast).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("[data-testid=toast-body] h1, [data-testid=toast-body] img[src=x]").count() == 0
    assert guarded.foreign_requests == []


def test_the_browser_shows_what_the_server_shows(server: Server, page: Page) -> None:
    everything = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    # After an emoji, characters that are neither letters nor unassigned may be shown in another way.
    others = [each for each in everything if unicodedata.category(each) not in ("Lo", "Lt", "Cn", "Co")]
    pieces = [f"{character}b" for character in everything] + [f"👨{character}b" for character in others]
    # Join many strings: two million texts would take minutes.
    texts = ["".join(pieces[start : start + 1024]) for start in range(0, len(pieces), 1024)]
    texts += [*NEEDED, *MISUSED, "a\u200d" * 50]
    page.goto(f"{server.address}/runs")
    shown = page.evaluate(
        """async (texts) => {
          const { visible } = await import("./live/assets/js/shared/dom.js");
          return texts.map(visible);
        }""",
        texts,
    )
    assert shown == [visible(text) for text in texts]
