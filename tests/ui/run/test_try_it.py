"""The "Try it" card: a model answers drawn, entered or typed input, at every checkpoint."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import ANSWER_TIMEOUT_S, wait_until
from tests.ui.conftest import HAS_ALL, PHONE, Watched, assert_usable_on_a_phone
from tests.unit.ddp_gui.runs.test_runs import leave_events
from tests.unit.trained_runs import delete_checkpoint, leave_trained_run
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

STEPS = (1, 2, 3)
# Pastes an image while nothing has the focus.
PASTE = """async () => {
    document.activeElement.blur();
    const image = await new Promise((resolve) => document.createElement("canvas").toBlob(resolve));
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([image], "pasted.png", { type: "image/png" }));
    document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""
RECORD_STREAMS = """() => {
    window.streams = [];
    const devices = navigator.mediaDevices, open = devices.getUserMedia.bind(devices);
    devices.getUserMedia = (wanted) =>
        open(wanted).then((stream) => (window.streams.push(stream), stream));
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


def answer_to(page: Page, server: Server, run: RunDirectory, *options: Any) -> Any:
    """Return the endpoint's answer to what is drawn on the page."""
    pixels = page.evaluate("document.querySelector('.ddp-try-canvas').toDataURL('image/png')")
    client = Client(server.address, verbose=False)
    return client.predict(run.run_id, {"drawing": pixels}, *options, api_name="/predict")


def wait_for_bars(page: Page, *answers: Any) -> None:
    wanted = [f"{100 * each['probability']:.1f}%" for answer in answers for each in answer["probabilities"]]
    wait_until("the bars of the answers", lambda: shown_bars(page) == wanted, ANSWER_TIMEOUT_S)


def test_a_drawing_and_two_checkpoints(server: Server, runs: dict[str, RunDirectory], page: Page) -> None:
    run = runs["image"]
    open_card(page, server, run)
    expect(page.locator(".ddp-try-says")).to_have_text(
        "The answer appears here, as soon as there is an input."
    )
    compared, answers = page.get_by_label("compare with"), page.locator(".ddp-try-answers > :visible")
    expect(compared.locator("option")).to_have_text(["nothing", "step 1", "step 2", "step 3 (latest)"])
    draw(page)
    expect(page.locator(".ddp-try-bars li")).to_have_count(10)
    history = page.locator(".ddp-try-history button")
    expect(history).to_have_count(len(STEPS))
    expect(page.locator(".ddp-try-history button[aria-label*='not known']")).to_have_count(0)
    latest = shown_bars(page)
    slider = page.get_by_label("Checkpoint to try")
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator(".ddp-try-steps output")).to_have_text("step 2")
    wait_until("another answer", lambda: shown_bars(page) != latest, ANSWER_TIMEOUT_S)
    found = answer_to(page, server, run, 2, 3)
    wait_for_bars(page, found)
    page.get_by_text("Similar validation samples").click()
    expect(page.locator(".ddp-try-nearest figure")).to_have_count(8)
    labels = page.locator(".ddp-try-nearest figcaption").all_text_contents()
    assert labels[:3] == [str(each["label"]) for each in found["nearest"]["images"]]

    # After many clicks, the last one counts.
    for number in range(20):
        history.nth(number % len(STEPS)).dispatch_event("click")
    history.nth(0).dispatch_event("click")
    expect(page.locator(".ddp-try-steps output")).to_have_text("step 1")
    wait_for_bars(page, answer_to(page, server, run, 1))

    history.nth(2).dispatch_event("click")
    compared.select_option("1")
    expect(answers.locator("h3:visible")).to_have_text(["step 3 (latest)", "step 1"])
    wait_for_bars(page, *(answer_to(page, server, run, step) for step in (3, 1)))
    compared.select_option("3")  # the checkpoint that is already shown
    expect(answers).to_have_count(1)
    expect(answers.locator("h3")).to_be_hidden()


def test_images_from_keys_files_and_camera(server: Server, runs: dict[str, RunDirectory], page: Page) -> None:
    """The camera is Chromium's fake one, a moving test pattern."""
    open_card(page, server, runs["image"])
    bars, clear = page.locator(".ddp-try-bars li"), page.get_by_role("button", name="Clear")
    words = page.locator(".ddp-try-drawing [role=status]")
    page.locator(".ddp-try-canvas").focus()
    for key in (" ", *["ArrowDown"] * 4, *["ArrowRight"] * 2):
        page.keyboard.press(key)
    expect(words).to_have_text("The pen is down.")
    expect(bars).to_have_count(10)
    page.keyboard.press("Delete")
    expect(bars).to_have_count(0)

    picker = page.locator(".ddp-try input[type=file]")
    picker.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"not an image"})
    expect(words).to_have_text("notes.txt is not an image that this browser can read.")
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    picker.set_input_files({"name": "dot.png", "mimeType": "image/png", "buffer": pixel})
    expect(words).to_have_text("Showing dot.png.")
    expect(bars).to_have_count(10)
    clear.click()
    page.evaluate(PASTE)
    expect(words).to_have_text("Showing pasted.png.")
    expect(bars).to_have_count(10)
    clear.click()

    camera = page.get_by_role("button", name="Camera")
    camera.click()
    expect(words).to_contain_text("The camera cannot be used: ")
    page.context.grant_permissions(["camera"], origin=server.address)
    page.evaluate(RECORD_STREAMS)
    camera.dblclick()
    take = page.get_by_role("button", name="Take the picture")
    expect(take).to_be_visible()
    page.wait_for_function("() => document.querySelector('.ddp-try-video').videoWidth > 0")
    take.dblclick()
    expect(bars).to_have_count(10)
    expect(page.locator(".ddp-try-video")).to_have_count(0)
    expect(camera).not_to_have_attribute("aria-disabled", "true")
    ends = page.evaluate("window.streams.map((stream) => stream.getTracks()[0].readyState)")
    assert ends == ["ended"], "the camera was opened once and is off"
    assert_usable_on_a_phone(page, ".ddp-try")


def test_rows_points_and_texts(server: Server, runs: dict[str, RunDirectory], watched: Watched) -> None:
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
    watched.complaints.clear()  # the browser logs the refusal

    open_card(page, server, runs["number"])
    expect(page.locator(".ddp-try-says")).to_contain_text("The model predicts")

    open_card(page, server, runs["text"])
    page.locator(".ddp-try-text").fill("Emma qzxv")
    expect(page.locator(".ddp-try-bars li")).to_have_count(6)
    expect(page.locator(".ddp-try-token")).to_have_text(["emma", "unknown"])

    open_card(page, server, runs["plane"])
    expect(page.locator(".ddp-try-bars li")).to_have_count(2)
    before = shown_bars(page)
    page.locator(".ddp-try-plane").focus()
    for _ in range(20):
        page.keyboard.press("ArrowUp")
    wait_until("another answer", lambda: shown_bars(page) != before, ANSWER_TIMEOUT_S)
    assert_usable_on_a_phone(page, ".ddp-try")


def test_a_text_is_written_and_stopped(server: Server, runs: dict[str, RunDirectory], page: Page) -> None:
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
    page.get_by_label("compare with").select_option("1")
    page.get_by_label("length").fill("20")
    page.get_by_label("temperature").fill("0")
    page.get_by_role("button", name="Write").click()
    client = Client(server.address, verbose=False)
    arguments = {"run_id": runs["writer"].run_id, "prompt": "It is", "temperature": 0, "num_tokens": 20}
    for place, step in enumerate((3, 1)):
        shown = page.locator(".ddp-try-output").nth(place).locator(".ddp-try-written")
        expect(shown).to_have_count(20)
        found: Any = client.predict(**arguments, checkpoint_step=step, api_name="/generate")
        assert "".join(shown.all_text_contents()) == found["text"]
    assert_usable_on_a_phone(page, ".ddp-try")


def test_two_runs_answer(server: Server, runs: dict[str, RunDirectory], watched: Watched) -> None:
    page, run = watched.page, runs["image"]
    other = leave_trained_run(run.path.parent, "digits", "linear", steps=(7,), seed=3)[0]
    leave_events(other)
    open_card(page, server, run)
    draw(page)
    compared, answers = page.get_by_label("compare with"), page.locator(".ddp-try-answers > :visible")
    compared.select_option(f"run {other.run_id}")
    expect(answers.locator("h3:visible")).to_have_text(
        [f"{run.run_id}, step 3 (latest)", f"{other.run_id}, latest checkpoint"]
    )
    found = [answer_to(page, server, each) for each in (run, other)]
    wait_for_bars(page, *found)
    expect(page.locator(".ddp-try-differs")).to_contain_text(found[1]["prediction"])
    expect(answers.first.locator(".ddp-try-mark")).to_have_count(10)
    page.set_viewport_size(PHONE)
    tops = [box["y"] for one in answers.all() if (box := one.bounding_box()) is not None]
    assert tops[1] > tops[0] + 200, "below each other"
    delete_checkpoint(other, 7)
    page.get_by_role("button", name="Clear").click()
    draw(page)
    expect(answers.nth(1)).to_contain_text(f"{other.run_id}, latest checkpoint cannot answer: run")
    watched.complaints.clear()  # the browser logs the refusal
