"""The "Try it" card: a model answers drawn, entered or typed input, at every checkpoint."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.ui.conftest import Watched, assert_accessible
from tests.unit.ddp_gui.runs.test_runs import leave_events
from tests.unit.trained_runs import delete_checkpoint, leave_trained_run
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

HAS_ALL = "() => document.querySelector('.ddp-run-page:not(.ddp-awaits-all)') !== null"
STEPS = (1, 2, 3)
# Pastes an image while nothing has the focus.
PASTE = """async () => {
    document.activeElement.blur();
    const image = await new Promise((resolve) => document.createElement("canvas").toBlob(resolve));
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([image], "pasted.png", { type: "image/png" }));
    document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""
KINDS = {
    "image": ("digits", "linear"),
    "row": ("iris", "linear"),
    "plane": ("moons", "tabular_mlp"),
    "number": ("diabetes", "linear"),
    "text": ("austen_novels", "bag_of_words"),
    "writer": ("austen", "gpt"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    folder: Path = tmp_path_factory.mktemp("tried")
    found = {}
    for kind, (dataset, model) in KINDS.items():
        run = found[kind] = leave_trained_run(folder, dataset, model, steps=STEPS)[0]
        leave_events(run)
    return found


@pytest.fixture(scope="module")
def server(runs: dict[str, RunDirectory]) -> Iterator[Server]:
    with page_driver.serve(runs["image"].path.parent, page_driver.NO_STANDBY) as served:
        yield served


@pytest.fixture
def no_run_left() -> None:
    """Override the fixture: these tests start no run."""


def open_card(page: Page, server: Server, run: RunDirectory) -> None:
    page.goto(f"{server.address}/run?id={run.run_id}")
    page.wait_for_function(HAS_ALL)
    page.locator(".ddp-try").scroll_into_view_if_needed()
    expect(page.locator(".ddp-try-body")).to_be_visible()


def draw(page: Page) -> None:
    box = page.locator(".ddp-try-canvas").bounding_box()
    assert box is not None
    x, y, side = box["x"], box["y"], box["width"]
    page.mouse.move(x + 0.5 * side, y + 0.2 * side)
    page.mouse.down()
    page.mouse.move(x + 0.5 * side, y + 0.8 * side, steps=5)
    page.mouse.up()


def shown_bars(page: Page) -> list[str]:
    return page.locator(".ddp-try-percent").all_text_contents()


def answering_processes(server: Server) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found += child.children() if "trainers.predict.server" in child.cmdline() else []
    return found


def test_a_drawing_is_answered_at_each_checkpoint_and_as_the_endpoint_does(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page, run = watched.page, runs["image"]
    open_card(page, server, run)
    expect(page.locator(".ddp-try-says")).to_have_text(
        "The answer appears here, as soon as there is an input."
    )
    draw(page)
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    latest = shown_bars(page)
    expect(page.locator(".ddp-try-history button")).to_have_count(len(STEPS))
    expect(page.locator(".ddp-try-history button[aria-label*='not known']")).to_have_count(0)
    slider = page.get_by_label("Checkpoint to try")
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator(".ddp-try-steps output")).to_have_text("step 2")
    wait_until("another answer", lambda: shown_bars(page) != latest, ANSWER_TIMEOUT_S)
    pixels = page.evaluate("document.querySelector('.ddp-try-canvas').toDataURL('image/png')")
    client = Client(server.address, verbose=False)
    found: Any = client.predict(run.run_id, {"drawing": pixels}, 2, 3, api_name="/predict")
    assert [f"{100 * each['probability']:.1f}%" for each in found["probabilities"]] == shown_bars(page)
    page.get_by_text("Similar validation samples").click()
    expect(page.locator(".ddp-try-nearest figure")).to_have_count(8)
    labels = page.locator(".ddp-try-nearest figcaption").all_text_contents()
    assert labels[:3] == [str(each["label"]) for each in found["nearest"]["images"]]
    assert watched.complaints == [] and watched.foreign_requests == []


def test_two_checkpoints_answer_side_by_side(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page, run = watched.page, runs["image"]
    open_card(page, server, run)
    compared, answers = page.get_by_label("compare with"), page.locator(".ddp-try-answers > :visible")
    expect(compared.locator("option")).to_have_text(["nothing", "step 1", "step 2", "step 3 (latest)"])
    compared.select_option("1")
    expect(answers).to_have_count(1)  # no input so far
    draw(page)
    expect(answers.locator("h3:visible")).to_have_text(["step 3 (latest)", "step 1"])
    pixels = page.evaluate("document.querySelector('.ddp-try-canvas').toDataURL('image/png')")
    client = Client(server.address, verbose=False)
    wanted: list[Any] = [
        client.predict(run.run_id, {"drawing": pixels}, step, api_name="/predict") for step in (3, 1)
    ]
    percentages = [
        f"{100 * each['probability']:.1f}%" for answer in wanted for each in answer["probabilities"]
    ]
    wait_until("both answers", lambda: shown_bars(page) == percentages, ANSWER_TIMEOUT_S)
    compared.select_option("3")  # the checkpoint that is already shown
    expect(answers).to_have_count(1)
    expect(answers.locator("h3")).to_be_hidden()
    assert watched.complaints == []

    open_card(page, server, runs["writer"])
    page.get_by_label("compare with").select_option("1")
    page.get_by_label("length").fill("20")
    page.get_by_role("button", name="Write").click()
    texts = page.locator(".ddp-try-output")
    expect(texts.nth(1).locator(".ddp-try-written")).to_have_count(20)
    arguments = {"run_id": runs["writer"].run_id, "num_tokens": 20}
    for place, step in enumerate((3, 1)):
        found: Any = client.predict(**arguments, checkpoint_step=step, api_name="/generate")
        assert "".join(texts.nth(place).locator(".ddp-try-written").all_text_contents()) == found["text"]
    assert watched.complaints == []


def test_after_many_clicks_the_last_one_counts_for_each_of_two_users(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page, run = watched.page, runs["image"]
    client = Client(server.address, verbose=False)
    with page.context.browser.new_context() as context:  # type: ignore[union-attr]
        other = context.new_page()
        other.set_default_timeout(page_driver.PAGE_TIMEOUT_MS)
        for each in (page, other):
            open_card(each, server, run)
            draw(each)
            expect(each.locator(".ddp-try-history button")).to_have_count(len(STEPS))
        for each, step in ((page, 1), (other, 2)):
            buttons = each.locator(".ddp-try-history button")
            for number in range(20):
                buttons.nth(number % len(STEPS)).dispatch_event("click")
            buttons.nth(step - 1).dispatch_event("click")
        for each, step in ((page, 1), (other, 2)):
            expect(each.locator(".ddp-try-steps output")).to_have_text(f"step {step}")
            pixels = each.evaluate("document.querySelector('.ddp-try-canvas').toDataURL('image/png')")
            found: Any = client.predict(run.run_id, {"drawing": pixels}, step, api_name="/predict")
            wanted = [f"{100 * one['probability']:.1f}%" for one in found["probabilities"]]
            wait_until("the last answer", lambda: shown_bars(each) == wanted, ANSWER_TIMEOUT_S)  # noqa: B023
    assert watched.complaints == []


def test_a_drawing_needs_no_pointer(server: Server, runs: dict[str, RunDirectory], watched: Watched) -> None:
    page = watched.page
    open_card(page, server, runs["image"])
    page.locator(".ddp-try-canvas").focus()
    for key in (" ", *["ArrowDown"] * 4, *["ArrowRight"] * 2):
        page.keyboard.press(key)
    expect(page.locator(".ddp-try-drawing [role=status]")).to_have_text("The pen is down.")
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    page.keyboard.press("Delete")
    expect(page.locator(".ddp-try-bars li")).to_have_count(0)


def test_a_file_is_answered_and_another_kind_of_file_is_refused(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page = watched.page
    open_card(page, server, runs["image"])
    picker, words = page.locator(".ddp-try input[type=file]"), page.locator(".ddp-try-drawing [role=status]")
    picker.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"not an image"})
    expect(words).to_have_text("notes.txt is not an image that this browser can read.")
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    picker.set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": pixel})
    expect(words).to_have_text("Showing dot.png.")
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    page.get_by_role("button", name="Clear").click()
    page.evaluate(PASTE)
    expect(words).to_have_text("Showing pasted.png.")
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)


def test_the_camera_takes_a_picture_or_says_why_not(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    """The camera is Chromium's fake one, a moving test pattern."""
    page = watched.page
    open_card(page, server, runs["image"])
    camera, words = page.get_by_role("button", name="Camera"), page.locator(".ddp-try-drawing [role=status]")
    camera.click()
    expect(words).to_contain_text("The camera cannot be used: ")
    page.context.grant_permissions(["camera"], origin=server.address)
    page.evaluate(
        """() => {
            window.streams = [];
            const devices = navigator.mediaDevices, open = devices.getUserMedia.bind(devices);
            devices.getUserMedia = (wanted) =>
                open(wanted).then((stream) => (window.streams.push(stream), stream));
        }"""
    )
    camera.dblclick()
    take = page.get_by_role("button", name="Take the picture")
    expect(take).to_be_visible()
    video = page.locator(".ddp-try-video")
    page.wait_for_function("() => document.querySelector('.ddp-try-video').videoWidth > 0")
    take.dblclick()
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    expect(video).to_have_count(0)
    expect(camera).not_to_have_attribute("aria-disabled", "true")
    ends = page.evaluate("window.streams.map((stream) => stream.getTracks()[0].readyState)")
    assert ends == ["ended"], "the camera was opened once and is off"


def test_a_row_a_point_a_number_and_a_text_are_answered(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page = watched.page
    open_card(page, server, runs["row"])
    expect(page.locator(".ddp-try-bars li")).to_have_count(3)  # initially the middle of the ranges
    before, field = shown_bars(page), page.get_by_label("petal length (cm)", exact=True)
    field.fill("1.2")
    wait_until("another answer", lambda: shown_bars(page) != before, ANSWER_TIMEOUT_S)
    field.fill("")
    expect(page.locator(".ddp-try-failure")).to_contain_text("row['petal length (cm)'] is empty")
    field.fill("2")
    expect(page.locator(".ddp-try-failure")).to_be_hidden()

    open_card(page, server, runs["plane"])
    expect(page.locator(".ddp-try-bars li")).to_have_count(2)
    before = shown_bars(page)
    page.locator(".ddp-try-plane").focus()
    for _ in range(20):
        page.keyboard.press("ArrowUp")
    wait_until("another answer", lambda: shown_bars(page) != before, ANSWER_TIMEOUT_S)

    open_card(page, server, runs["number"])
    expect(page.locator(".ddp-try-says")).to_contain_text("The model predicts")

    open_card(page, server, runs["text"])
    page.locator(".ddp-try-text").fill("Emma qzxv")
    expect(page.locator(".ddp-try-bars li")).to_have_count(6)
    expect(page.locator(".ddp-try-token")).to_have_text(["emma", "unknown"])
    assert watched.complaints == [
        "Failed to load resource: the server responded with a status of 409 (Conflict)"
    ]


def test_a_text_is_written_token_by_token_stopped_and_written_again(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page = watched.page
    open_card(page, server, runs["writer"])
    page.get_by_label("Beginning of the text").fill("It is")
    page.get_by_label("length").fill("1000")
    page.get_by_role("button", name="Write").click()
    written = page.locator(".ddp-try-written")
    expect(written.nth(20)).to_be_attached()
    page.locator(".ddp-try").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Write")).to_be_visible()
    assert 20 < written.count() < 1000
    assert "Others: " in str(written.first.get_attribute("title"))
    page.get_by_label("length").fill("20")
    page.get_by_label("temperature").fill("0")
    page.get_by_role("button", name="Write").click()
    expect(written).to_have_count(20)
    client = Client(server.address, verbose=False)
    arguments = {"run_id": runs["writer"].run_id, "prompt": "It is", "temperature": 0, "num_tokens": 20}
    found: Any = client.predict(**arguments, api_name="/generate")
    assert "".join(written.all_text_contents()) == found["text"]
    assert watched.complaints == []


def test_a_killed_process_and_a_deleted_checkpoint_are_messages_and_the_next_attempt_works(
    server: Server, runs: dict[str, RunDirectory], watched: Watched, tmp_path: Path
) -> None:
    page = watched.page
    run = leave_trained_run(runs["image"].path.parent, "digits", "linear", steps=(1, 2))[0]
    leave_events(run)
    open_card(page, server, run)
    draw(page)
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    for process in answering_processes(server):
        process.kill()
    page.get_by_role("button", name="Clear").click()
    draw(page)
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    page.get_by_role("button", name="Clear").click()
    delete_checkpoint(run, 2)
    draw(page)
    expect(page.locator(".ddp-try-failure")).to_contain_text("no checkpoint of step 2; its checkpoints: 1")
    page.get_by_label("Checkpoint to try").focus()
    page.keyboard.press("Home")
    expect(page.locator(".ddp-try-failure")).to_be_hidden()
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)


@pytest.mark.parametrize("kind", ["image", "plane", "writer"])
def test_everybody_can_use_it(
    server: Server, runs: dict[str, RunDirectory], watched: Watched, kind: str
) -> None:
    page = watched.page
    page.set_viewport_size({"width": 390, "height": 900})
    open_card(page, server, runs[kind])
    assert_accessible(page, ".ddp-try")
    is_wider = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert page.evaluate(is_wider) is False


def test_two_runs_answer_side_by_side(
    server: Server, runs: dict[str, RunDirectory], watched: Watched
) -> None:
    page, run = watched.page, runs["image"]
    folder = run.path.parent
    other, garments = (
        leave_trained_run(folder, dataset, "linear", steps=(7,), seed=3)[0]
        for dataset in ("digits", "fashion_mnist")
    )
    for each in (other, garments):
        leave_events(each)
    open_card(page, server, run)
    draw(page)
    compared, answers = page.get_by_label("compare with"), page.locator(".ddp-try-answers > :visible")
    compared.select_option(f"run {other.run_id}")
    expect(answers.locator("h3:visible")).to_have_text(
        [f"{run.run_id}, step 3 (latest)", f"{other.run_id}, latest checkpoint"]
    )
    pixels = page.evaluate("document.querySelector('.ddp-try-canvas').toDataURL('image/png')")
    client = Client(server.address, verbose=False)
    wanted: list[Any] = [
        client.predict(each.run_id, {"drawing": pixels}, api_name="/predict") for each in (run, other)
    ]
    percentages = [
        f"{100 * each['probability']:.1f}%" for answer in wanted for each in answer["probabilities"]
    ]
    wait_until("both answers", lambda: shown_bars(page) == percentages, ANSWER_TIMEOUT_S)
    words = [answer["prediction"] for answer in wanted]
    said = f"Both say {words[0]}." if words[0] == words[1] else f"They disagree: {words[0]} and {words[1]}."
    expect(page.locator(".ddp-try-differs")).to_contain_text(said)
    expect(answers.first.locator(".ddp-try-mark")).to_have_count(10)
    page.set_viewport_size({"width": 390, "height": 900})
    tops = [box["y"] for one in answers.all() if (box := one.bounding_box()) is not None]
    assert tops[1] > tops[0] + 200, "below each other"
    compared.select_option(f"run {garments.run_id}")
    expect(page.locator(".ddp-try-differs")).to_have_text("The two models have no class in common.")
    assert watched.complaints == []
    delete_checkpoint(other, 7)
    compared.select_option(f"run {other.run_id}")
    page.get_by_role("button", name="Clear").click()
    draw(page)
    expect(answers.nth(1)).to_contain_text(f"{other.run_id}, latest checkpoint cannot answer: run")
