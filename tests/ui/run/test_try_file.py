"""try.html in a real browser: opened from a file, offline, with the same answers as torch."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ddp_gui.run import try_page
from tests.ui.conftest import NewContext, assert_usable_on_a_phone
from tests.unit.trained_runs import leave_trained_run
from trainers.predict import take_home
from trainers.predict.trained_model import TrainedModel, find_checkpoint, load

DIFFERENCE = 1e-4
CASES = {
    "image": ("digits", "cnn", {"pixels": [[(3 * x + y) % 17 for x in range(8)] for y in range(8)]}),
    "row": ("iris", "tabular_mlp", None),
    "number": ("diabetes", "linear", None),
    "text": ("austen_novels", "bag_of_words", {"text": "Emma Woodhouse, handsome, clever, and rich; qzxv!"}),
    "writer": ("austen", "gpt", None),
}
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in take_home.ONNX_PACKAGES),
    reason="onnx or onnxscript is not installed: pip install -r requirements-export.txt",
)


Made = Callable[[str], tuple[Path, TrainedModel]]


@pytest.fixture
def no_run_left() -> None:
    """Override the fixture: these tests start no run."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a cached function that creates the page of a case and returns it with its torch model."""

    @functools.cache
    def make(kind: str) -> tuple[Path, TrainedModel]:
        dataset, name, _ = CASES[kind]
        folder = tmp_path_factory.mktemp(kind)
        run = leave_trained_run(folder / "runs", dataset, name)[0]
        model = load(run, find_checkpoint(run, None))
        example = take_home.example_input(model)
        is_text = model.about["input"]["kind"] == "text"
        exported = take_home.export_program(model.network, example, is_text=is_text)
        take_home.write_onnx(exported, folder / "model.onnx")
        page = folder / "try.html"
        page.write_bytes(try_page.try_page(run.run_id, model.about, folder / "model.onnx"))
        return page, model

    return make


@pytest.fixture
def offline(new_context: NewContext) -> Iterator[Page]:
    """Yield an offline page. Any request outside its file fails the test."""
    page = new_context(viewport={"width": 1440, "height": 900}, offline=True).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(str(error)))
    yield page
    assert [url[:100] for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []


def open_file(page: Page, path: Path) -> None:
    assert path.stat().st_size <= try_page.MAX_BYTES
    page.goto(path.as_uri())
    page.wait_for_function("() => window.ddpTry")


@needs_onnx
@pytest.mark.parametrize("kind", ["image", "row", "number", "text"])
def test_answers_are_those_of_torch(kind: str, made: Made, offline: Page) -> None:
    path, model = made(kind)
    open_file(offline, path)
    inputs, about = CASES[kind][2], model.about["input"]
    if inputs is None:
        inputs = {"row": dict(zip(about["feature_names"], about["high"], strict=True))}
    expected = model.predict(inputs)
    found = offline.evaluate("(inputs) => window.ddpTry.model.predict(inputs)", inputs)
    if kind == "number":
        assert found["value"] == pytest.approx(expected["value"], rel=DIFFERENCE)
    else:
        assert found["prediction"] == expected["prediction"]
        for one, other in zip(found["probabilities"], expected["probabilities"], strict=True):
            assert one["class_name"] == other["class_name"]
            assert one["probability"] == pytest.approx(other["probability"], abs=DIFFERENCE)
    if kind == "text":
        assert found["input"]["tokens"] == expected["input"]["tokens"]


@needs_onnx
def test_the_most_probable_text_is_that_of_torch_and_can_be_stopped(made: Made, offline: Page) -> None:
    path, model = made("writer")
    open_file(offline, path)
    options: dict[str, Any] = {"temperature": 0, "top_k": None, "num_tokens": 20, "seed": 0}
    expected = "".join(token["text"] for token in model.generate("It is", **options))
    offline.get_by_label("Beginning of the text").fill("It is")
    offline.get_by_label("temperature").fill("0")
    offline.get_by_label("length").fill("20")
    offline.get_by_role("button", name="Write").click()
    written = offline.locator(".ddp-try-written")
    expect(written).to_have_count(20)
    assert "".join(written.all_text_contents()) == expected
    offline.get_by_label("length").fill("1000")
    offline.get_by_role("button", name="Write").click()
    expect(written.nth(5)).to_be_attached()
    offline.get_by_role("button", name="Stop").click()
    expect(offline.get_by_role("button", name="Write")).to_be_visible()
    assert written.count() < 1000


@needs_onnx
def test_a_drawing_is_answered_and_everybody_can_use_it(made: Made, offline: Page) -> None:
    path, model = made("image")
    open_file(offline, path)
    offline.locator(".ddp-try-canvas").focus()
    for key in (" ", *["ArrowDown"] * 8):
        offline.keyboard.press(key)
    expect(offline.locator(".ddp-try-bars li")).to_have_count(10)
    # The server centres and scales the same drawing with a different implementation.
    drawing = offline.evaluate("document.querySelector('.ddp-try-canvas').toDataURL('image/png')")
    wanted = model.predict({"drawing": drawing})
    found = offline.evaluate("(drawing) => window.ddpTry.model.predict({ drawing })", drawing)
    for one, other in zip(found["probabilities"], wanted["probabilities"], strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=0.05)
    offline.keyboard.press("Delete")
    expect(offline.locator(".ddp-try-bars li")).to_have_count(0)
    assert_usable_on_a_phone(offline, "main")
