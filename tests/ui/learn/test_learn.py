"""Lessons in a real browser, with real runs: predict, run, see, explain, check."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.harness import ANSWER_TIMEOUT_S, END_TIMEOUT_S, wait_until
from tests.ui.conftest import Watched, assert_usable, assert_usable_on_a_phone, kill_runs, serve
from tests.ui.learn import lessons
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

NAMES = """(chart) => {
  const plot = chart.querySelector(".js-plotly-plot");
  return plot && plot.data ? plot.data.map((trace) => `${trace.name}: ${trace.x.length > 1}`) : [];
}"""


@pytest.fixture(scope="module")
def learn_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    runs_dir = tmp_path_factory.mktemp("learn") / "runs"
    yield runs_dir
    kill_runs(runs_dir)


@pytest.fixture(scope="module")
def server(learn_runs: Path) -> Iterator[Server]:
    folder = lessons.write(learn_runs.parent / "lessons")
    options = ("--lessons", str(folder))
    with serve(learn_runs, *options) as served:
        yield served


def part(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name)


def expect_curves(page: Page, *names: str) -> None:
    chart = page.locator('[data-chart="lesson-loss-step"]')
    chart.scroll_into_view_if_needed()  # charts outside the viewport are not drawn
    expect(chart.locator(".js-plotly-plot")).to_be_visible()
    page.wait_for_function(
        f"([chart, names]) => String(({NAMES})(chart)) === String(names)",
        arg=[chart.element_handle(), [f"{name}: true" for name in names]],
    )


def runs_of(page: Page, name: str) -> Locator:
    return part(page, name).locator(".ddp-lesson-run-row")


def test_a_lesson_from_prediction_to_last_question(server: Server, page: Page, learn_runs: Path) -> None:
    page.goto(f"{server.address}/learn")
    faults = part(page, "Files that are not valid lessons")
    expect(faults).to_contain_text("93-broken.md, line 3: minutes is 0; allowed:")
    page.get_by_role("link", name="To choose").click()
    predict = part(page, "1. Predict")
    expect(predict).to_contain_text("2 < 3 & <b>no tag</b>")
    expect(part(page, "2. Run")).to_be_hidden()
    lock = page.get_by_role("button", name="Lock my prediction")
    expect(lock).to_be_disabled()
    other = page.context.new_page()
    other.goto(f"{server.address}/learn?lesson=chosen")
    predict.get_by_label("the first").check()
    lock.click()
    expect(predict.get_by_label("neither")).to_be_disabled()
    page.get_by_role("button", name="Start both runs").click()
    expect(runs_of(page, "2. Run").first).to_contain_text(re.compile("running|finished"))
    # A reload in the middle keeps the progress: the second run is started afterwards.
    page.reload()
    expect(predict.get_by_label("the first")).to_be_checked()
    # Another tab reads the progress and starts no further runs.
    expect(part(other, "1. Predict").get_by_label("the first")).to_be_checked()
    expect(other.get_by_role("button", name="Start both runs")).to_be_hidden()
    for row in runs_of(page, "2. Run").all():
        expect(row).to_contain_text("finished")
        expect(row).to_contain_text("step 80 of 80")
    expect(predict).to_contain_text("The result differs from your prediction.")
    expect(predict).to_contain_text("Both see the same.")
    expect(predict).to_contain_text(re.compile(r"Measured: training loss, last of “first”: 0\.\d{4,}"))
    # The question and the measured finding are shown with the picture.
    picture = part(page, "3. See").locator(".ddp-lesson-picture", has_text="Measured.")
    expect(picture).to_contain_text("Which one has more steps?")
    expect(picture).to_contain_text("Both have 80 steps.")
    expect_curves(page, "first", "second")
    expect(part(page, "3. See").get_by_text("half way")).to_be_visible()
    see = part(page, "3. See")
    table = see.locator(".ddp-table")
    expect(table.get_by_role("row", name="Global batch")).to_contain_text("12864")
    expect(table).not_to_contain_text("–")
    bars = see.locator(".ddp-lesson-picture", has_text="What each rank holds").locator("table")
    # Four numbers per weight on each rank: DDP shards nothing.
    held = bars.get_by_role("row", name=re.compile("^rank")).all_inner_texts()
    assert len(held) == 3 and len({row.split(maxsplit=2)[2] for row in held}) == 1, held
    cost = see.locator(".ddp-lesson-picture", has_text="What it cost.")
    expect(cost).to_contain_text(re.compile("unexplained|Too few steps were sampled"))
    replicas = see.locator(".ddp-lesson-instruments")
    expect(replicas.get_by_role("heading", name="first")).to_be_visible()
    expect(replicas).to_contain_text("identical")
    expect(part(page, "4. Explain")).to_contain_text("Because of loss.backward().")
    check = part(page, "5. Check")
    check.get_by_label("not so").check()
    expect(check).to_contain_text("That is why.")
    expect(check.get_by_role("radio", name="so the right answer", exact=True)).to_be_disabled()
    # The other question requires an additional run.
    expect(check.get_by_label("another", exact=True)).to_be_disabled()
    check.get_by_role("button", name="Run it").click()
    expect(check.locator(".ddp-lesson-run-row")).to_contain_text("finished")
    expect_curves(page, "first", "second", "seed 1")
    check.get_by_label("another", exact=True).check()
    # All given answers are shown, for all questions.
    expect(check.locator("input:checked")).to_have_count(2)
    expect(predict.get_by_label("the first")).to_be_checked()
    expect(page.get_by_text("You have completed this lesson.")).to_be_visible()
    expect(page.get_by_role("link", name="Next lesson")).to_have_attribute(
        "href", re.compile("lesson=drawn$")
    )
    page.get_by_role("button", name="Lab report").click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download the report").click()
    report = Path(downloading.value.path()).read_text(encoding="utf-8")
    for words in ("The result differs from my prediction.", "1 of 2 questions right", "seed 1"):
        assert words in report
    for path in learn_runs.glob("*/events.jsonl"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"{digest}  {path.parent.name}/events.jsonl" in report
    runs = [RunDirectory(path.parent) for path in learn_runs.glob("*/config.json")]
    names = sorted(run.read_config().name for run in runs)
    assert names == ["To choose: first", "To choose: second", "To choose: seed 1"]
    page.get_by_role("link", name="All lessons").click()
    expect(page.get_by_role("listitem").filter(has_text="To choose")).to_contain_text("1 min · done")
    page.goto(f"{server.address}/runs")
    expect(page.get_by_role("row").filter(has_text="To choose: seed 1")).to_contain_text("lesson")
    page.goto(f"{server.address}/learn?lesson=chosen")
    page.get_by_role("button", name="Do it again, delete its runs").click()
    expect(other.get_by_role("button", name="Lock my prediction")).to_be_disabled()
    expect(page.get_by_role("button", name="Lock my prediction")).to_be_disabled()
    assert not list(learn_runs.glob("*/config.json"))


def test_a_curve_is_drawn_by_pointer_by_keys_and_as_numbers(server: Server, page: Page) -> None:
    page.goto(f"{server.address}/learn?lesson=drawn")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert_usable(page)
    lock = page.get_by_role("button", name="Lock my prediction")
    expect(lock).to_be_disabled()
    points = page.get_by_role("slider")
    expect(points).to_have_count(9)
    expect(points.first).to_have_attribute("aria-valuenow", "2")
    first, last = points.first.bounding_box(), points.last.bounding_box()
    assert first is not None and last is not None
    # Dragging from the left edge to the right one sets all points on the line.
    page.mouse.move(first["x"] + first["width"] / 2, first["y"] - 40)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] / 2, last["y"] + 60)
    page.mouse.up()

    def is_drawn() -> bool:
        drawn = [float(point.get_attribute("aria-valuenow") or "nan") for point in points.all()]
        return drawn == sorted(drawn, reverse=True) and drawn[0] > 2.3 and drawn[-1] < 1.7

    wait_until("a line that falls", is_drawn, ANSWER_TIMEOUT_S)
    points.nth(8).focus()
    page.keyboard.press("Home")
    expect(points.nth(8)).to_have_attribute("aria-valuenow", "0")
    page.keyboard.press("ArrowUp")
    expect(points.nth(8)).to_have_attribute("aria-valuenow", "0.1")
    page.get_by_text("As numbers").click()
    field = page.get_by_role("spinbutton", name="training loss at optimizer step 0")
    field.fill("17")
    field.press("Tab")
    expect(points.first).to_have_attribute("aria-valuenow", "4")
    lock.click()
    expect(field).to_be_disabled()
    points.first.dispatch_event("keydown", {"key": "ArrowDown"})
    expect(points.first).to_have_attribute("aria-valuenow", "4")
    page.get_by_role("button", name="Start both runs").click()
    expect(part(page, "1. Predict")).to_contain_text(re.compile(r"your curve is [\d.]+ away on average"))
    expect_curves(page, "first", "second", "your prediction")


def test_a_lesson_that_is_too_large_runs_on_fewer_ranks(server: Server, watched: Watched) -> None:
    page = watched.page
    page.goto(f"{server.address}/learn?lesson=nonsense")
    expect(page.get_by_text("there is no lesson 'nonsense'")).to_be_visible()
    watched.complaints.clear()  # the browser logs the 404
    page.get_by_role("link", name="All lessons").click()
    page.get_by_role("link", name="Too large").click()
    predict = part(page, "1. Predict")
    expect(predict).to_contain_text("This machine cannot run this lesson as defined:")
    expect(predict).to_contain_text("first: nproc_per_node is 900")
    expect(predict).to_contain_text("On this machine it runs on at most")
    assert_usable_on_a_phone(page)
    page.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowUp")
    page.get_by_role("button", name="Lock my prediction").click()
    expect(page.get_by_role("button", name="Start both runs")).to_be_enabled()


def test_a_twin_that_hangs_ends_by_itself_and_the_lesson_goes_on(server: Server, page: Page) -> None:
    page.goto(f"{server.address}/learn?lesson=hanging")
    page.get_by_label("neither").check()
    page.get_by_role("button", name="Lock my prediction").click()
    page.get_by_role("button", name="Start both runs").click()
    first, second = runs_of(page, "2. Run").all()
    expect(first).to_contain_text("finished")
    expect(second).to_contain_text(re.compile("It failed, as expected\\. .*rank"))
    expect(second.locator(".ddp-lesson-run-words")).not_to_contain_text(".py:")
    expect(second.locator(".ddp-lesson-run-words")).to_contain_text(
        "Rank 1 never entered the all-reduce of the gradients, in which rank 0 waits."
    )
    expect(second.get_by_text("Full message with code locations")).to_be_visible()
    expect(part(page, "1. Predict")).to_contain_text("Your prediction was correct.")
    expect(page.get_by_role("button", name="Run again")).to_be_hidden()


def test_times_that_say_little_are_doubted(server: Server, page: Page) -> None:
    """The server's comparison reports unreliable times; here the response simulates a busy machine."""
    reasons = ["Other programs used the processor for 90% of the time of “first”."]
    doubtful = {"verdict": "doubtful", "happened": None, "reasons": reasons, "numbers": []}

    def disturbed(route: Route) -> None:
        found = route.fetch().json()
        found["prediction"] = doubtful
        found["pictures"][0] = doubtful
        route.fulfill(json=found)

    page.route("**/live/learn/outcome?*", disturbed)
    page.goto(f"{server.address}/learn?lesson=chosen")
    page.get_by_label("neither").check()
    page.get_by_role("button", name="Lock my prediction").click()
    page.get_by_role("button", name="Start both runs").click()
    predict = part(page, "1. Predict")
    expect(predict).to_contain_text("These runs cannot show which answer is right:")
    expect(predict).to_contain_text(reasons[0])
    expect(predict.get_by_text("the right answer")).to_have_count(0)
    expect(predict).not_to_contain_text("Your prediction was correct.")
    expect(predict.get_by_text("Both see the same.")).to_be_hidden()
    expect(part(page, "3. See").locator(".ddp-lesson-picture").first).to_contain_text(
        "These times are unreliable:"
    )
    expect(predict.get_by_role("button", name="Measure again")).to_be_enabled()


UNTIL_END_MS = END_TIMEOUT_S * 1000


def test_a_learner_is_wrong_gets_hints_and_is_right(server: Server, watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    page.goto(f"{server.address}/learn")
    page.get_by_role("link", name="Shard the data").click()
    expect(page.locator(".cm-content")).to_contain_text("shuffle=True")
    run = page.get_by_role("button", name="Run on two CPU ranks")
    run.click()
    failed = page.locator(".ddp-code-checks [data-outcome=failed]")
    expect(failed).to_contain_text("rank 1 trained on 512 of the 512 samples", timeout=UNTIL_END_MS)
    hints = page.locator(".ddp-code-hints li")
    expect(hints.nth(0)).to_be_visible()
    expect(hints.nth(1)).to_be_hidden()
    page.get_by_role("button", name="Another hint").click()
    expect(hints.nth(1)).to_be_visible()
    assert_usable(page)
    watched.complaints.clear()  # the browser logs the styles that axe adds to an editor

    page.get_by_role("button", name="Show the solution already").click()
    page.get_by_role("button", name="Put it into the editor").click()
    expect(page.locator(".cm-content")).to_contain_text("sampler.set_epoch(epoch)")
    run.click()
    expect(page.get_by_text("You have completed this lesson.")).to_be_visible(timeout=UNTIL_END_MS)
    expect(failed).to_have_count(0)

    page.reload()
    expect(page.locator(".cm-content")).to_contain_text("sampler.set_epoch(epoch)")
    page.get_by_role("button", name="Lab report").click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download the report").click()
    path = tmp_path / "report.html"
    downloading.value.save_as(path)
    text = path.read_text(encoding="utf-8")
    assert "sampler.set_epoch(epoch)" in text and "Right, after 2 runs; the solution was shown." in text
