"""All controls of a run's page, in a real browser with real runs."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, END_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Watched, wait_until_in_place
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

SMALL = {"dataset": "digits", "model": "mlp", "device": "cpu", "batch_size": 32}
LONG = {**SMALL, "num_epochs": 100_000}
PLOT = "document.querySelector('[data-chart=\"loss\"] .js-plotly-plot')"
NAMES = f"() => {PLOT}?.data?.map(trace => trace.name) ?? []"


@pytest.fixture(scope="module")
def ended(client: Client, runs_dir: Path) -> RunDirectory:
    """Return a finished run with checkpoints and evaluations."""
    config = {**SMALL, "num_epochs": 4, "name": "the ended one"}
    run = RunDirectory(runs_dir / client.predict(config, api_name="/start_run")["run_id"])
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error
    return run


def open_run(watched: Watched, server: Server, run: RunDirectory | str, **query: str) -> Page:
    run_id = run if isinstance(run, str) else run.run_id
    more = "".join(f"&{name}={value}" for name, value in query.items())
    watched.page.goto(f"{server.address}/run?id={run_id}{more}")
    watched.page.wait_for_function(f"() => ({NAMES})().length > 0")
    return watched.page


def test_curves_over_time_logarithmic_and_raw_and_the_choice_is_kept(
    server: Server, watched: Watched, ended: RunDirectory
) -> None:
    page = open_run(watched, server, ended)
    page.wait_for_function(f"() => ({NAMES})().includes('training, smoothed over 10 steps')")
    page.get_by_label("Smoothing").select_option("0")
    page.wait_for_function(f"() => !({NAMES})().includes('training, smoothed over 10 steps')")
    page.get_by_label("Scale").select_option("log")
    page.wait_for_function(f"() => {PLOT}.layout.yaxis.type === 'log'")
    page.get_by_label("Drawn over").select_option("time")
    page.wait_for_function(f"() => {PLOT}.layout.xaxis.type === 'date'")
    page.reload()
    page.wait_for_function(f"() => {PLOT}?.layout?.xaxis?.type === 'date'")
    page.wait_for_function(f"() => {PLOT}.layout.yaxis.type === 'log'")
    page.wait_for_function(f"() => ({NAMES})().includes('training')")
    assert watched.complaints == [] and watched.foreign_requests == []


def test_another_smoothing_keeps_the_zoom(server: Server, watched: Watched, ended: RunDirectory) -> None:
    page = open_run(watched, server, ended)
    page.evaluate(f"() => Plotly.relayout({PLOT}, {{'xaxis.range': [20, 60]}})")
    page.get_by_label("Smoothing").select_option("100")
    page.wait_for_function(f"() => ({NAMES})().includes('training, smoothed over 100 steps')")
    assert page.evaluate(f"() => {PLOT}._fullLayout.xaxis.range") == [20, 60]
    # A zoom in steps does not apply to the time axis.
    page.get_by_label("Drawn over").select_option("time")
    page.wait_for_function(f"() => {PLOT}.layout.xaxis.type === 'date'")
    assert page.evaluate(f"() => new Date({PLOT}._fullLayout.xaxis.range[0]).getUTCFullYear()") >= 1999


def test_all_charts_end_where_the_run_does_and_checkpoints_stand_on_the_axis(
    server: Server, watched: Watched, ended: RunDirectory
) -> None:
    page = open_run(watched, server, ended)
    last = max(event["step"] for event in all_events(ended) if event["kind"] == "step")
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
    assert marks["yaxis"] == "y2" and len(set(marks["y"])) == 1


def test_a_run_that_goes_on_is_drawn_up_to_its_end(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    run_id = client.predict({**LONG, "max_steps": 100_000}, api_name="/start_run")["run_id"]
    page = open_run(watched, server, run_id)
    page.wait_for_function(f"() => {PLOT}._fullLayout?.xaxis?.range?.[1] === 100000")
    client.predict(run_id, False, api_name="/stop_run")
    run = RunDirectory(runs_dir / run_id)
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    last = max(event["step"] for event in all_events(run) if event["kind"] == "step")
    page.wait_for_function(f"() => {PLOT}._fullLayout.xaxis.range[1] === {last}")


def test_a_double_click_shows_the_whole_curve_again(
    server: Server, watched: Watched, ended: RunDirectory
) -> None:
    page = open_run(watched, server, ended)
    whole = page.evaluate(f"() => {PLOT}._fullLayout.xaxis.range")
    area = page.locator('[data-chart="loss"] .nsewdrag').first
    box = wait_until_in_place(area)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_function(f"(x) => {PLOT}._fullLayout.xaxis.range[1] < 0.8 * x", arg=whole[1])

    def is_whole_again() -> bool:
        area.dblclick(force=True)
        page.wait_for_timeout(1_000)
        return bool(page.evaluate(f"(x) => Math.abs({PLOT}._fullLayout.xaxis.range[1] - x) < 1", whole[1]))

    # A double click needs two clicks within 0.3 s, which a busy browser may miss, so repeat it.
    wait_until("the whole curve", is_whole_again, ANSWER_TIMEOUT_S)


def test_a_click_on_a_checkpoint_offers_resume_and_a_download_that_is_whole(
    server: Server, watched: Watched, ended: RunDirectory, tmp_path: Path
) -> None:
    page = open_run(watched, server, ended)
    page.wait_for_function(f"() => ({NAMES})().includes('checkpoint')")
    wait_until_in_place(page.locator('[data-chart="loss"] .nsewdrag').first)
    place = page.evaluate(
        f"""() => {{
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
    )
    page.mouse.move(place["x"] - 2, place["y"])
    page.mouse.move(place["x"], place["y"])
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


def test_logs_are_searched(server: Server, watched: Watched, ended: RunDirectory) -> None:
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


def test_configuration_confusion_and_memory_are_shown(
    server: Server, watched: Watched, ended: RunDirectory
) -> None:
    page = open_run(watched, server, ended)
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
    page.set_viewport_size({"width": 390, "height": 844})
    box = page.get_by_role("region", name="Confusion matrix")
    box.scroll_into_view_if_needed()
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth"), (
        "all classes are in sight on a phone, too"
    )


def test_run_again_fills_the_form_in_as_the_run_was(
    server: Server, watched: Watched, ended: RunDirectory
) -> None:
    page = open_run(watched, server, ended)
    page.get_by_role("link", name="Run again with changes").click()
    expect(page.get_by_label(re.compile("Batch per rank"))).to_have_value("32")
    expect(page.locator("#field-num_epochs input")).to_have_value("4")
    expect(page.get_by_label("Model", exact=True)).to_have_value("MLP")
    expect(page.locator("#command")).to_contain_text('"name": "the ended one"')


# Faster than a browser enters and leaves full screen.
TWICE_F = """() => {
  const press = () => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "f", bubbles: true }));
  press();
  press();
}"""

COUNT_SCREEN_CHANGES = """() => {
  const changes = { count: 0 };
  document.addEventListener("fullscreenchange", () => (changes.count += 1));
  return changes;
}"""


def test_projector_and_the_page_for_those_who_only_watch(
    server: Server, watched: Watched, ended: RunDirectory
) -> None:
    page = open_run(watched, server, ended)
    projector = page.get_by_role("button", name="Projector")
    projector.click()
    expect(page.locator(".ddp-logs")).to_be_hidden()
    expect(page.locator('[data-chart="loss"]')).to_be_visible()
    expect(page).to_have_url(re.compile("projector=1"))
    page.keyboard.press("Escape")
    expect(page.locator(".ddp-logs")).to_be_visible()
    page.keyboard.press("f")
    expect(page.locator(".ddp-logs")).to_be_hidden()
    page.wait_for_function("() => document.fullscreenElement !== null")
    changes = page.evaluate_handle(COUNT_SCREEN_CHANGES)
    page.evaluate(TWICE_F)
    page.wait_for_function("(changes) => changes.count === 2", arg=changes)
    expect(page.locator(".ddp-logs")).to_be_hidden()
    open_run(watched, server, ended, watch="1")
    for name in ("Stop", "Resume", "Resume from here"):
        assert not page.get_by_role("button", name=name, exact=True).first.is_visible()


def test_the_link_to_watch_is_copied(server: Server, watched: Watched, ended: RunDirectory) -> None:
    watched.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = open_run(watched, server, ended)
    page.get_by_role("button", name="Copy viewer link").click()
    expect(page.locator(".ddp-toast")).to_contain_text("Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == f"{server.address}/run?id={ended.run_id}&watch=1"


def test_light_and_dark_are_switched_and_kept(server: Server, watched: Watched, ended: RunDirectory) -> None:
    page = open_run(watched, server, ended)
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"(light) => ({background})() !== light", arg=light)
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()
    dark = page.evaluate(background)
    page.reload()
    page.locator(".ddp-pill").wait_for()
    page.wait_for_function(f"(dark) => ({background})() === dark", arg=dark)


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


def test_the_title_shows_progress_and_the_browser_tells_of_the_end(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    watched.page.add_init_script(f"({RECORD_NOTIFICATIONS})()")
    run_id = client.predict({**LONG, "name": "told"}, api_name="/start_run")["run_id"]
    page = open_run(watched, server, run_id)
    expect(page).to_have_title(re.compile(r"^\d+% · told$"))
    page.get_by_role("button", name="Notify me").click()
    expect(page.get_by_role("button", name="Notify me")).to_have_attribute("aria-pressed", "true")
    client.predict(run_id, True, api_name="/stop_run")
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    page.wait_for_function("() => window.told.length === 1")
    assert page.evaluate("() => window.told[0][0]") == "told was stopped"
    expect(page).to_have_title("stopped · told")


def test_a_rate_that_is_too_high_is_seen_and_lowered_by_a_click(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    config = {**LONG, "learning_rate": 1, "lr_schedule": "constant", "warmup_ratio": 0}
    run_id = client.predict(config, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    page = open_run(watched, server, run_id)
    # On a shared machine, other insights may appear as well.
    said = page.locator(".ddp-insights li[data-code^=loss_]").first
    expect(said).to_be_visible()
    expect(said).to_contain_text("Seen in")
    page.get_by_role("button", name="Lower the rate to 0.1 now").click()

    def rates() -> set[float]:
        return {event["lr"] for event in all_events(run) if event["kind"] == "step"}

    wait_until("steps at the lower rate", lambda: 0.1 in rates(), ANSWER_TIMEOUT_S)
    answers: list[dict[str, Any]] = [e for e in all_events(run) if e["kind"] == "command"]
    assert [answer["name"] for answer in answers] == ["set_lr"]
    page.wait_for_function(f"() => ({NAMES})().includes('command')")


def test_the_rate_of_a_live_run_is_set_on_its_page(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    config = {**LONG, "learning_rate": 0.002, "lr_schedule": "cosine", "warmup_steps": 1_000_000}
    run_id = client.predict(config, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    page = open_run(watched, server, run_id)
    rate = page.get_by_role("spinbutton", name="New full learning rate")
    expect(rate).to_be_enabled()
    rate.fill("1000")
    rate.press("Enter")
    refusal = re.compile("is 1000; allowed: a number above 0")
    expect(page.locator(".ddp-toast-error")).to_have_text(refusal)
    rate.fill("0.5")
    page.get_by_role("button", name="Set", exact=True).click()
    toast = page.locator(".ddp-toast").filter(has_text="Full learning rate is 0.5 from step")
    expect(toast).to_be_visible()  # check first: the toast disappears after some seconds
    answer: dict[str, Any] = wait_until(
        "the answer",
        lambda: next((e for e in all_events(run) if e["kind"] == "command"), None),
        ANSWER_TIMEOUT_S,
    )
    assert answer["accepted"] and answer["arguments"] == {"learning_rate": 0.5}
    expect(page.locator(".ddp-events-list")).to_contain_text(answer["message"])
    page.wait_for_function(f"() => ({NAMES})().includes('command')")

    def rates() -> dict[int, float]:
        return {event["step"]: event["lr"] for event in all_events(run) if event["kind"] == "step"}

    first = answer["step"] + 1
    wait_until("a step at the new rate", lambda: first in rates(), ANSWER_TIMEOUT_S)
    assert rates()[first] == pytest.approx(0.5 * first / 1_000_000), "it rises to the new full rate"
    client.predict(run_id, False, api_name="/stop_run")
    expect(rate).to_be_disabled()
    expect(rate).to_have_attribute("title", "The run is not training now.")
    expect(page.locator(".ddp-events-list li[data-kind=state]").first).to_contain_text("Stopped")
    assert "Stopping" not in page.locator(".ddp-events-list").inner_text()
    page.goto(f"{server.address}/run?id={run_id}&watch=1")
    expect(rate).to_be_hidden()


def test_a_healthy_run_gets_no_remarks(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    run_id = client.predict(
        {"dataset": "fashion_mnist", "model": "mlp", "device": "cpu", "max_steps": 400}, api_name="/start_run"
    )["run_id"]
    run = RunDirectory(runs_dir / run_id)
    page = open_run(watched, server, run_id)
    seen: set[str] = set()

    def has_ended() -> bool:
        codes = "items => items.map(item => item.dataset.code)"
        seen.update(page.locator(".ddp-insights li").evaluate_all(codes))
        return liveness.read_status(run).state not in events.LIVE_STATES

    wait_until("the end", has_ended, END_TIMEOUT_S)
    # Other programs on this machine may take CPU time or delay a rank for seconds.
    assert seen <= {"slow_rank", "others_use_the_processor"}


def test_the_tour_shows_what_it_describes_and_is_gone_for_good(server: Server, watched: Watched) -> None:
    """On a phone, the tour takes at most a third of the height."""
    page, size = watched.page, (390, 844)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(server.address)
    tour = page.get_by_role("region", name="A short tour")
    words = ""

    def is_in_sight() -> bool:
        """Return True if the tour covers nothing of the target that fits above it."""
        box, target = tour.bounding_box(), page.locator(".ddp-tour-target").bounding_box()
        assert box and target
        seen = min(target["y"] + target["height"], box["y"]) - max(target["y"], 0)
        return bool(seen >= min(target["height"], box["y"] - 20) - 1)

    for number in range(1, 6):
        expect(tour).to_contain_text(f"{number} of 5")
        words += tour.inner_text()
        box = tour.bounding_box()
        assert box and box["height"] <= size[1] / 3, box
        # The page is still scrolling to it.
        wait_until(f"target {number} in sight", is_in_sight, ANSWER_TIMEOUT_S)
        tour.get_by_role("button", name="Done" if number == 5 else "Next").click()
    assert "Learn" in words and "minute" not in words
    expect(tour).to_be_hidden()
    page.reload()
    page.wait_for_selector(".ddp-equation")
    expect(tour).to_be_hidden()
    page.get_by_role("button", name="Show the tour").click()
    expect(tour).to_contain_text("1 of 5")
    page.keyboard.press("Tab")
    tour.get_by_role("button", name="Close").click()
    expect(tour).to_be_hidden()


def test_a_preset_fills_the_form_in(server: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(server.address)
    page.wait_for_selector(".ddp-equation")
    for preset, model, command in (
        ("austen", "GPT", '"model": "gpt", "dataset": "austen"'),
        ("moons", "MLP for tables", '"model": "tabular_mlp", "dataset": "moons"'),
    ):
        page.locator(f"#preset-{preset}").click()
        expect(page.get_by_label("Model", exact=True)).to_have_value(re.compile(model))
        expect(page.locator("#command")).to_contain_text(command)
        expect(page.locator(".ddp-memory-card")).to_contain_text("parameters")
        watched.wait_until_answered()
    assert watched.complaints == []


def test_a_warning_comes_before_the_start_and_goes_again(server: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(server.address)
    page.wait_for_selector(".ddp-equation")
    rate = page.get_by_label("Learning rate How far")
    rate.fill("8")
    rate.blur()
    expect(page.locator(".ddp-before")).to_contain_text("800 times the highest that usually works")
    rate.fill("0.002")
    rate.blur()
    expect(page.locator(".ddp-before")).to_have_count(0)


@pytest.mark.parametrize("path", ["no", "no/such/page", "runs/"])
def test_an_address_without_a_page_leads_to_the_others(server: Server, watched: Watched, path: str) -> None:
    page = watched.page
    page.goto(f"{server.address}/{path}?x=1")
    expect(page.get_by_role("heading", level=1)).to_have_text("This page does not exist.")
    expect(page.get_by_role("button", name="Dark theme")).to_be_visible()  # styles and scripts are found
    page.locator("main").get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


@pytest.mark.parametrize("query", ["?id=no-such-run-9", "", "?id=../../etc"])
def test_a_run_that_is_not_there_says_so(server: Server, watched: Watched, query: str) -> None:
    page = watched.page
    page.goto(f"{server.address}/run{query}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile("cannot be shown|names no run"))
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
