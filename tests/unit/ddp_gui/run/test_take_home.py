"""The card of a downloaded model, and try.html without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddp_gui.events.run_view import RunView
from ddp_gui.run import model_card, try_page
from ddp_gui.run.try_page import NoPageError
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of

DATA = {"description": "Photographs.", "source": "somebody, MIT", "sample_unit": "images"}
ABOUT: dict[str, Any] = {
    "task": "image_classification",
    "model": {"size": "small", "num_parameters": 1234},
    "input": {"kind": "image", "shape": [1, 28, 28]},
    "output": {"class_names": ["a|b", "\u202eevil"]},
    "data": {**DATA, "num_train": 8000, "num_validation": 2000},
}
FACTS: dict[str, Any] = {
    "step": 10,
    "about": ABOUT,
    "example": "example.pgm",
    "snippet": "import torch\n",
    "files": {"model.pt2": {"size_bytes": 12_345, "sha256": "0" * 64}},
    "differences": {"model.pt2": 0.0},
    "onnx_problem": "onnx is not installed",
    "versions": {"torch": "2.13.0"},
}


@pytest.fixture
def view(tmp_path: Path, catalogue) -> RunView:
    found = store_of(tmp_path, catalogue).view(make_run(tmp_path).run_id)
    found.catch_up()
    return found


def test_a_card_names_what_was_measured_and_what_is_missing(view: RunView) -> None:
    card = model_card.model_card(view, FACTS)
    assert "| accuracy | 0.75 (95% interval 0.7306 to 0.7685) |" in card
    assert "`model.onnx` is missing: onnx is not installed on the machine that made this zip." in card
    assert "somebody, MIT" in card and "| 12,345 | `" + "0" * 64 in card
    assert "⟨U+" in card  # characters with an effect are shown by their number
    assert "| `batch_size` |" in card and "`script" not in card and "|  |" not in card
    assert "Lineage" not in card and "LoRA" not in card
    other = model_card.model_card(view, FACTS | {"step": 7})
    assert "The model was not evaluated at step 7." in other
    assert model_card.curve(view).count("<polyline") == 2


@pytest.mark.parametrize("confusion", [[[0, 0], [0, 0]], [[5, -1], [0, 5]], [[0.5, 0], [0, 0]]])
def test_a_matrix_of_no_samples_has_no_interval(view: RunView, confusion: list[list[float]]) -> None:
    view.series.evaluations.all[-1].update(confusion=confusion, metrics={"macro_f1": 0.25})
    assert "| macro_f1 | 0.25 |" in model_card.model_card(view, FACTS)


def test_a_card_names_the_checkpoint_that_the_run_started_from_and_the_rank_of_lora(view: RunView) -> None:
    view.config = replace(view.config, start_from="digits-cnn-1/60")
    start = {"run_id": "digits-cnn-1", "step": 60, "replaced": ["9.weight"]}
    start |= {"num_classes_before": 10, "num_classes": 4}
    view.series.plan |= {"start": start, "num_trained": 1_123, "num_parameters": 33_187}
    origin = {"run_id": "digits-cnn-1", "step": 60, "dataset": "digits", "size_bytes": 9, "sha256": "a" * 64}
    (view.run.path / "start").mkdir()
    (view.run.path / "start" / "origin.json").write_text(json.dumps(origin))
    about = ABOUT | {"model": {"size": "", "num_parameters": 32_160, "lora_rank": 4}}
    card = model_card.model_card(view, FACTS | {"about": about})
    assert "Lineage: started from run digits-cnn-1, step 60; last layer new: 10 → 4 classes (trained" in card
    assert f"SHA-256 of the weights: `{'a' * 64}`)." in card
    assert "LoRA of rank 4: 1,123 of 33,187 parameters were trained." in card


def test_the_interval_of_macro_f1_is_that_of_a_share_where_both_are_the_same() -> None:
    """Of two classes with the same errors, macro F1 is the accuracy."""
    wanted = model_card.wilson(0.9, 1_000)
    assert model_card.f1_interval(np.array([[450, 50], [50, 450]])) == pytest.approx(wanted, abs=2e-3)
    assert model_card.f1_interval(np.array([[5, 0, 0], [0, 5, 0], [0, 0, 0]])) == (1.0, 1.0)


ABOUT_IMAGES: dict[str, Any] = {"input": {"kind": "image"}, "output": {"class_names": ["</script><b>", "1"]}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"onnx" * 100)
    return path


def test_the_page_holds_the_model_its_description_and_the_runtime(model: Path) -> None:
    page = try_page.try_page("<a run>", ABOUT_IMAGES, model).decode()
    held = dict(re.findall(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', page))
    assert gzip.decompress(base64.b64decode(held["model"])) == model.read_bytes()
    runtime = gzip.decompress(base64.b64decode(held["runtime"]))
    assert b"ONNX Runtime Web v1.30.0" in runtime[:200] and b"MIT License" in runtime[:200]
    assert gzip.decompress(base64.b64decode(held["runtime-wasm"]))[:4] == b"\0asm"
    found = re.search(r'<script type="application/json" id="about">(.*)</script>', page)
    assert found is not None and json.loads(found[1]) == ABOUT_IMAGES
    assert "<title>&lt;a run&gt;</title>" in page
    assert page.count("</script>") == page.count("<script")
    assert "@font-face" not in page and 'src="' not in page and "<link" not in page
    assert "MIT License" in (try_page.RUNTIME / "LICENSE.txt").read_text()


def test_a_large_model_or_tokenizer_is_no_page(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"input": {"kind": "text", "tokenizer": {"kind": "pretrained"}}}
    with pytest.raises(NoPageError, match="the tokenizer of a pretrained model does not run"):
        try_page.try_page("a", about, model)
    monkeypatch.setattr(try_page, "MAX_BYTES", 10**6)
    with pytest.raises(NoPageError, match="it would have 5 MB; the limit is 1 MB"):
        try_page.try_page("a", ABOUT_IMAGES, model)
