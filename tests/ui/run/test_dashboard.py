"""All controls of a run's page, in a real browser with real runs."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import PHONE, Start, Watched, drag_over
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

PLOT = "document.querySelector('[data-chart=\"loss\"] .js-plotly-plot')"
NAMES = f"() => {PLOT}?.data?.map(trace => trace.name) ?? []"
RANGE = f"{PLOT}._fullLayout?.xaxis?.range"
# The position on the screen, and the step, of the first checkpoint in the chart.
FIRST_CHECKPOINT = f"""() => {{
  const plot = {PLOT};
  const {{ xaxis, yaxis2: yaxis }} = plot._fullLayout;
  const marks = plot.data.find(trace => trace.name === 'checkpoint');
  const box = plot.getBoundingClientRect();
  return {{
    x: box.left + xaxis._offset + xaxis.c2p(marks.x[0]),
    y: box.top + yaxis._offset + yaxis.c2p(marks.y[0]),
    step: marks.customdata[0],
  }};
}}"""


def open_run(watched: Watched, server: Server, run: RunDirectory, more: str = "") -> Page:
    watched.page.goto(f"{server.address}/run?id={run.run_id}{more}")
    watched.page.wait_for_function(f"() => ({NAMES})().length > 0")
    return watched.page


def last_step(run: RunDirectory) -> int:
    return max(event["step"] for event in all_events(run) if event["kind"] == "step")


def test_the_choices_for_curves_are_kept(server: Server, watched: Watched, ended: RunDirectory) -> None:
    page = open_run(watched, server, ended)
    page.wait_for_function(f"() => ({NAMES})().includes('training, smoothed over 10 steps')")
    page.evaluate(f"() => Plotly.relayout({PLOT}, {{'xaxis.range': [20, 60]}})")
    page.get_by_label("Smoothing").select_option("100")
    page.wait_for_function(f"() => ({NAMES})().includes('training, smoothed over 100 steps')")
    assert page.evaluate(f"() => {RANGE}") == [20, 60], "another smoothing keeps the zoom"
    page.get_by_label("Smoothing").select_option("0")
    page.wait_for_function(f"() => !({NAMES})().some((name) => name.includes('smoothed'))")
    page.get_by_label("Scale").select_option("log")
    page.wait_for_function(f"() => {PLOT}.layout.yaxis.type === 'log'")
    page.get_by_label("Drawn over").select_option("time")
    page.wait_for_function(f"() => {PLOT}.layout.xaxis.type === 'date'")
    # A zoom in steps does not apply to the time axis.
    assert page.evaluate(f"() => new Date({RANGE}[0]).getUTCFullYear()") >= 1999
    page.reload()
    page.wait_for_function(f"() => {PLOT}?.layout?.xaxis?.type === 'date'")
    page.wait_for_function(f"() => {PLOT}.layout.yaxis.type === 'log'")
    page.wait_for_function(f"() => ({NAMES})().includes('training')")


def test_charts_of_an_ended_run(
    server: Server, watched: Watched, ended: RunDirectory, tmp_path: Path
) -> None:
    page, last = open_run(watched, server, ended), last_step(ended)
    charts = page.locator(".ddp-chart .js-plotly-plot")
    expect(charts).to_have_count(5)
    for chart in charts.all():
        chart.scroll_into_view_if_needed()
        wait_until(
            "the axis of the whole run",
            lambda chart=chart: chart.evaluate("plot => plot._fullLayout?.xaxis?.range") == [0, last],
            ANSWER_TIMEOUT_S,
        )
    marks = page.evaluate(f"() => {PLOT}.data.find(trace => trace.name === 'checkpoint')")
    assert set(marks["x"]) == {item.step for item in ended.list_checkpoints()}
    assert marks["yaxis"] == "y2"
    assert len(set(marks["y"])) == 1, "checkpoints are marked on the axis"

    page.locator("[data-chart=loss]").scroll_into_view_if_needed()
    area = page.locator('[data-chart="loss"] .nsewdrag').first
    drag_over(area)
    page.wait_for_function(f"(x) => {RANGE}[1] < 0.8 * x", arg=last)

    def is_whole_again() -> bool:
        area.dblclick(force=True)
        page.wait_for_timeout(1_000)
        return bool(page.evaluate(f"(x) => Math.abs({RANGE}[1] - x) < 1", last))

    # A double click needs two clicks within 0.3 s, which a busy browser may miss, so repeat it.
    wait_until("the whole curve", is_whole_again, ANSWER_TIMEOUT_S)

    place = page.evaluate(FIRST_CHECKPOINT)
    page.mouse.move(place["x"] - 2, place["y"])
    page.mouse.click(place["x"], place["y"])
    menu = page.get_by_role("dialog", name="Checkpoint")
    expect(menu).to_contain_text(f"Step {place['step']:,}")
    expect(menu.get_by_role("button", name="Resume from here")).to_be_visible()
    with page.expect_download() as downloading:
        menu.get_by_role("link", name="Download").click()
    kept = tmp_path / "checkpoint.zip"
    downloading.value.save_as(kept)
    with zipfile.ZipFile(kept) as archive:
        assert archive.testzip() is None
        names = {name.split("/", 1)[1] for name in archive.namelist()}
    folder = ended.checkpoints / f"step_{place['step']}"
    assert names == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()


def test_logs_settings_and_confusion_matrix(server: Server, watched: Watched, ended: RunDirectory) -> None:
    ended.rank_log(1).open("a").write("a <b>needle</b> in the hay\n")
    page = open_run(watched, server, ended)
    page.locator(".ddp-logs").scroll_into_view_if_needed()
    page.get_by_role("tab", name="rank 1").click()
    search = page.get_by_label("Search this log")
    search.fill("NEEDLE hay")
    expect(page.locator(".ddp-log")).to_have_text("a <b>needle</b> in the hay\n")
    expect(page.locator(".ddp-log mark")).to_have_text(["needle", "hay"])
    expect(page.locator(".ddp-logs .ddp-hint")).to_contain_text("1 line has")
    search.fill("no such words")
    expect(page.locator(".ddp-logs .ddp-hint")).to_contain_text("No line has")
    search.fill("")
    expect(page.locator(".ddp-log")).to_contain_text("epoch")

    expect(page.locator(".ddp-configuration .ddp-settings").first).to_contain_text("32")
    page.locator(".ddp-configuration summary").click()
    expect(page.locator(".ddp-configuration details")).to_contain_text("weight_decay")
    newest = [event for event in all_events(ended) if event["kind"] == "eval"][-1]
    diagonal = [newest["confusion"][index][index] for index in range(10)]
    shown = page.locator(".ddp-confusion td.ddp-right")
    expect(shown).to_have_text([re.compile(f"^{count}$" if count else "^0?$") for count in diagonal])
    page.locator(".ddp-confusion td.ddp-right button:enabled").first.click()
    expect(page.locator(".ddp-confusion [role=status]")).to_contain_text(", the surest first.")
    expect(page.locator(".ddp-confusion .ddp-try-nearest figure").first).to_be_visible()
    expect(page.locator(".ddp-memory")).to_contain_text("predicted")
    page.set_viewport_size(PHONE)
    box = page.get_by_role("region", name="Confusion matrix")
    box.scroll_into_view_if_needed()
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth"), "all classes are in sight on a phone"


def test_a_viewer_has_the_theme_and_no_actions(server: Server, watched: Watched, ended: RunDirectory) -> None:
    watched.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = open_run(watched, server, ended)
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"(light) => ({background})() !== light", arg=light)
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    dark = page.evaluate(background)
    page.get_by_role("button", name="Copy viewer link").click()
    expect(page.locator(".ddp-toast")).to_contain_text("Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == f"{server.address}/run?id={ended.run_id}&watch=1"
    page.goto(copied)
    page.wait_for_function(f"(dark) => ({background})() === dark", arg=dark)
    page.wait_for_function(f"() => ({NAMES})().length > 0")
    for name in ("Stop", "Resume", "Resume from here"):
        assert not page.get_by_role("button", name=name, exact=True).first.is_visible(), name


# Record system notifications, which a headless browser cannot show.
RECORD_NOTIFICATIONS = """() => {
  window.told = [];
  class Recorded extends EventTarget {
    static permission = 'granted';
    static requestPermission = async () => 'granted';
    constructor(title, options) { super(); window.told.push([title, options.body]); }
  }
  window.Notification = Recorded;
}"""


def test_the_end_of_a_run_is_told(server: Server, client: Client, watched: Watched, start: Start) -> None:
    watched.page.add_init_script(f"({RECORD_NOTIFICATIONS})()")
    run = start(name="told", max_steps=100_000)
    page = open_run(watched, server, run)
    page.wait_for_function(f"() => {RANGE}?.[1] === 100000")
    expect(page).to_have_title(re.compile(r"^\d+% · told$"))
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notify me")).to_have_attribute("aria-pressed", "true")
    client.predict(run.run_id, False, api_name="/stop_run")
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    page.wait_for_function("() => window.told.length === 1")
    assert page.evaluate("() => window.told[0][0]") == "told was stopped"
    expect(page).to_have_title("stopped · told")
    page.wait_for_function(f"(last) => {RANGE}[1] === last", arg=last_step(run))


def test_a_rate_that_is_too_high_is_lowered_by_a_click(
    server: Server, watched: Watched, start: Start
) -> None:
    run = start(learning_rate=1, lr_schedule="constant", warmup_ratio=0)
    page = open_run(watched, server, run)
    # On a shared machine, other insights may appear as well.
    said = page.locator(".ddp-insights li[data-code^=loss_]").first
    expect(said).to_contain_text("Seen in")
    page.get_by_role("button", name="Lower the rate to 0.1 now").click()

    def rates() -> set[float]:
        return {event["lr"] for event in all_events(run) if event["kind"] == "step"}

    wait_until("steps at the lower rate", lambda: 0.1 in rates(), ANSWER_TIMEOUT_S)
    assert [event["name"] for event in all_events(run) if event["kind"] == "command"] == ["set_lr"]
    page.wait_for_function(f"() => ({NAMES})().includes('command')")


def test_the_rate_of_a_live_run_is_set(
    server: Server, client: Client, watched: Watched, start: Start
) -> None:
    run = start(learning_rate=0.002, lr_schedule="cosine", warmup_steps=1_000_000)
    page = open_run(watched, server, run)
    rate = page.get_by_role("spinbutton", name="New full learning rate")
    expect(rate).to_be_enabled()
    rate.fill("1000")
    rate.press("Enter")
    refusal = re.compile("is 1000; allowed: a number above 0")
    expect(page.locator(".ddp-toast-error")).to_have_text(refusal)
    watched.complaints.clear()  # the browser logs the refusal
    rate.fill("0.5")
    page.get_by_role("button", name="Set", exact=True).click()
    toast = page.locator(".ddp-toast").filter(has_text="Full learning rate is 0.5 from step")
    expect(toast).to_be_visible()  # check first: the toast disappears after some seconds
    answer: dict[str, Any] = wait_until(
        "the answer",
        lambda: next((e for e in all_events(run) if e["kind"] == "command"), None),
        ANSWER_TIMEOUT_S,
    )
    assert answer["accepted"]
    assert answer["arguments"] == {"learning_rate": 0.5}
    expect(page.locator(".ddp-events-list")).to_contain_text(answer["message"])

    client.predict(run.run_id, False, api_name="/stop_run")
    expect(rate).to_be_disabled()
    expect(rate).to_have_attribute("title", "The run is not training now.")
    expect(page.locator(".ddp-events-list li[data-kind=state]").first).to_contain_text("Stopped")
    assert "Stopping" not in page.locator(".ddp-events-list").inner_text()
    page.goto(f"{server.address}/run?id={run.run_id}&watch=1")
    expect(rate).to_be_hidden()


def test_an_address_without_a_page_or_a_run_says_so(server: Server, watched: Watched) -> None:
    page, title = watched.page, watched.page.get_by_role("heading", level=1)
    page.goto(f"{server.address}/no/such/page?x=1")
    expect(title).to_have_text("This page does not exist.")
    expect(page.get_by_role("button", name="Dark theme")).to_be_visible()  # styles and scripts are found
    page.locator("main").get_by_role("link", name="Runs").click()
    expect(title).to_have_text("Runs")
    page.goto(f"{server.address}/run")
    expect(title).to_contain_text("names no run")
    page.goto(f"{server.address}/run?id=no-such-run-9")
    expect(title).to_contain_text("cannot be shown")
    page.get_by_role("link", name="All runs").click()
    expect(title).to_have_text("Runs")
    watched.complaints.clear()  # the browser logs each 404
