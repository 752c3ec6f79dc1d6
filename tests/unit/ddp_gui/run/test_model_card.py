"""Tests of the card of a downloaded model, without packing it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddp_gui.run import model_card
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of

FACTS: dict[str, Any] = {
    "step": 10,
    "about": {
        "task": "image_classification",
        "model": {"size": "small", "num_parameters": 1234},
        "input": {"kind": "image", "shape": [1, 28, 28]},
        "output": {"class_names": ["a|b", "\u202eevil"]},
        "data": {
            "description": "Photographs.",
            "source": "somebody, MIT",
            "sample_unit": "images",
            "num_train": 8000,
            "num_validation": 2000,
        },
    },
    "example": "example.pgm",
    "snippet": "import torch\n",
    "files": {"model.pt2": {"size_bytes": 12_345, "sha256": "0" * 64}},
    "differences": {"model.pt2": 0.0},
    "onnx_problem": "onnx is not installed",
    "versions": {"torch": "2.13.0"},
}


def test_a_card_names_what_was_measured_and_what_is_missing(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    view = store_of(tmp_path, catalogue).view(run.run_id)
    view.catch_up()
    card = model_card.model_card(view, FACTS)
    assert "| accuracy | 0.75 (95% interval 0.7306 to 0.7685) |" in card
    assert "`model.onnx` is missing: onnx is not installed on the machine that made this zip." in card
    assert "somebody, MIT" in card and "| 12,345 | `" + "0" * 64 in card
    assert "⟨U+" in card  # characters with an effect are shown by their number
    assert "| `batch_size` |" in card and "`script" not in card and "|  |" not in card
    other = model_card.model_card(view, FACTS | {"step": 7})
    assert "The model was not evaluated at step 7." in other


def test_the_interval_of_macro_f1_is_that_of_a_share_where_both_are_the_same() -> None:
    """Of two classes with the same errors, macro F1 is the accuracy."""
    wanted = model_card.wilson(0.9, 1_000)
    assert model_card.f1_interval(np.array([[450, 50], [50, 450]])) == pytest.approx(wanted, abs=2e-3)
    assert model_card.f1_interval(np.array([[5, 0, 0], [0, 5, 0], [0, 0, 0]])) == (1.0, 1.0)


@pytest.mark.parametrize(
    "confusion", [[[0, 0], [0, 0]], [[5, -1], [0, 5]], [[0.5, 0], [0, 0]], [[1e300, 0], [0, 1]]]
)
def test_a_matrix_that_counts_no_samples_has_no_interval_and_a_card_is_made(
    tmp_path: Path,
    catalogue,  # noqa: F811
    confusion: list[list[float]],
) -> None:
    run = make_run(tmp_path)
    view = store_of(tmp_path, catalogue).view(run.run_id)
    view.catch_up()
    view.series.evaluations.all[-1].update(confusion=confusion, metrics={"macro_f1": 0.25})
    assert "| macro_f1 | 0.25 |" in model_card.model_card(view, FACTS)


def test_a_card_names_the_checkpoint_that_the_run_started_from(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    view = store_of(tmp_path, catalogue).view(run.run_id)
    view.catch_up()
    assert "Lineage" not in model_card.model_card(view, FACTS)
    view.config = replace(view.config, start_from="digits-cnn-1/60")
    counts = {"num_classes_before": 10, "num_classes": 4}
    view.series.plan["start"] = {"run_id": "digits-cnn-1", "step": 60, "replaced": ["9.weight"], **counts}
    origin = {"run_id": "digits-cnn-1", "step": 60, "dataset": "digits", "size_bytes": 9, "sha256": "a" * 64}
    (run.path / "start").mkdir()
    (run.path / "start" / "origin.json").write_text(json.dumps(origin))
    card = model_card.model_card(view, FACTS)
    assert (
        "Lineage: started from run digits-cnn-1, step 60; last layer new: 10 → 4 classes (trained on" in card
    )
    assert f"SHA-256 of the weights: `{'a' * 64}`)." in card


def test_a_card_names_the_rank_and_the_number_of_trained_parameters(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    view = store_of(tmp_path, catalogue).view(run.run_id)
    view.catch_up()
    assert "LoRA" not in model_card.model_card(view, FACTS)
    view.series.plan |= {"num_trained": 1_123, "num_parameters": 33_187}
    about = FACTS["about"] | {"model": {"size": "", "num_parameters": 32_160, "lora_rank": 4}}
    card = model_card.model_card(view, FACTS | {"about": about})
    assert "LoRA of rank 4: 1,123 of 33,187 parameters were trained." in card


def test_a_curve_without_numbers_is_empty(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    view = store_of(tmp_path, catalogue).view(run.run_id)
    assert model_card.curve(view).startswith("<svg") and "polyline" not in model_card.curve(view)
    view.catch_up()
    assert model_card.curve(view).count("<polyline") == 2
