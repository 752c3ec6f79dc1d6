"""Tests of samples during training: predictions of each task, without effect on the training random state."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainers import registry
from trainers.data.dataset import DataOptions
from trainers.registry import ModelOptions
from trainers.report import samples
from trainers.report.samples import Scores
from trainers.tasks import language_modelling, tabular_regression

CPU = torch.device("cpu")
MAX_JSON_BYTES = 8_000  # images are larger


def take(scores: Scores, dataset_name: str, seed: int = 0) -> tuple[str, Any]:
    """Return a sample of a bundled dataset; assert that the training random state is unchanged."""
    registry.discover_all()
    dataset = registry.datasets()[dataset_name].create(DataOptions())
    _, validation = dataset.load(CPU)
    before = torch.get_rng_state()
    spec = dataset.spec()
    with torch.no_grad():
        taken = registry.task(spec.task).sample(
            scores, spec, validation, device=CPU, seed=seed, time_limit_s=None
        )
    assert torch.equal(torch.get_rng_state(), before), "a sample must not change what training draws next"
    assert taken is not None
    kind, content = taken
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    if kind != "images":
        assert len(json.dumps(content, separators=(",", ":")).encode()) < MAX_JSON_BYTES
    return kind, content


def network(model_name: str, dataset_name: str) -> nn.Module:
    """Return an untrained network of the catalogue."""
    registry.discover_all()
    torch.manual_seed(7)
    spec = registry.datasets()[dataset_name].create(DataOptions()).spec()
    return registry.models()[model_name].build(spec, ModelOptions()).eval()


def always(scores: list[float]) -> Scores:
    """Return a model with constant output."""
    return lambda inputs: torch.tensor(scores).expand(len(inputs), len(scores))


def as_bytes(content: str) -> list[int]:
    return list(base64.b64decode(content))


@pytest.mark.slow
def test_text_is_written_in_the_data_sets_characters_and_the_same_for_a_seed() -> None:
    model = network("gpt", "austen")
    kind, text = take(model, "austen")
    assert kind == "text" and isinstance(text, str) and len(text) == language_modelling.NUM_CHARACTERS
    assert set(text) <= set(registry.datasets()["austen"].create(DataOptions()).spec().class_names)
    assert take(model, "austen") == ("text", text)
    assert take(model, "austen", seed=1) != ("text", text)


@pytest.mark.parametrize("dataset", ["moons", "spirals"])
def test_surface_says_of_each_place_what_the_model_says(dataset: str) -> None:
    """The fake model depends on x and y only, so an inverted picture would fail the test."""
    registry.discover_all()
    num_others = registry.datasets()[dataset].create(DataOptions()).spec().num_classes - 2

    def right_or_up(inputs: Tensor) -> Tensor:
        x, y = inputs.T
        return torch.stack([10 * x, 10 * y, *[torch.full_like(x, -99.0)] * num_others], dim=1)

    kind, content = take(right_or_up, dataset)
    assert kind == "surface"
    size = content["size"]
    predictions, confidence = as_bytes(content["predictions"]), as_bytes(content["confidence"])
    assert len(predictions) == len(confidence) == size * size
    assert predictions[0] == 1, "upper left: y is larger"
    assert predictions[-1] == 0, "lower right: x is larger"
    assert min(confidence) < 140 and max(confidence) == 255
    points = as_bytes(content["points"])
    assert len(points) == 3 * samples.NUM_POINTS and set(points[2::3]) == set(
        range(len(content["class_names"]))
    )
    assert content["feature_names"] == ["x", "y"]
    _, validation = registry.datasets()[dataset].create(DataOptions(normalise=False)).load(CPU)
    chosen = samples.spread(samples.NUM_POINTS, len(validation))
    inputs, labels = validation.batch(chosen)
    low, high = content["x_range"]
    assert low < float(inputs[:, 0].min()) and high > float(inputs[:, 0].max()), "in the column's own units"
    assert low + points[0] / 255 * (high - low) == pytest.approx(float(inputs[0, 0]), abs=0.02)
    low, high = content["y_range"]
    assert low + points[1] / 255 * (high - low) == pytest.approx(float(inputs[0, 1]), abs=0.02)
    assert points[2::3] == labels.tolist()
    _, diverged = take(always([math.nan] * (2 + num_others)), dataset)
    assert set(as_bytes(diverged["confidence"])) == {0}


def test_curve_is_in_the_units_of_the_data() -> None:
    """One fake model always predicts the mean, the other the sine."""
    registry.discover_all()
    spec = registry.datasets()["sine"].create(DataOptions()).spec()
    train, _ = registry.datasets()["sine"].create(DataOptions()).load(CPU)
    _, flat = take(lambda inputs: torch.zeros(len(inputs), 1), "sine")
    assert flat["y"] == [pytest.approx(spec.target_mean, rel=1e-3)] * tabular_regression.NUM_CURVE_POINTS

    def sine(inputs: Tensor) -> Tensor:
        x = inputs * train.feature_std + train.feature_mean  # type: ignore[attr-defined]
        return (x.sin() - spec.target_mean) / spec.target_std

    kind, content = take(sine, "sine")
    assert kind == "curve"
    assert content["y"] == pytest.approx([math.sin(x) for x in content["x"]], abs=5e-3)
    assert content["x"][0] < -5.9 and content["x"][-1] > 5.9
    errors = [y - math.sin(x) for x, y in zip(content["point_x"], content["point_y"], strict=True)]
    assert len(errors) == samples.NUM_POINTS and max(map(abs, errors)) < 0.7


def test_rows_of_a_table_show_columns_in_their_units_and_the_prediction() -> None:
    _, content = take(lambda inputs: torch.ones(len(inputs), 1), "diabetes")
    spec = registry.datasets()["diabetes"].create(DataOptions()).spec()
    for row in content["rows"]:
        assert row["prediction"] == pytest.approx(spec.target_mean + spec.target_std, rel=1e-3)
        assert 25 <= row["target"] <= 346 and row["target"] == pytest.approx(round(row["target"]), abs=0.06)
        assert row["error"] == pytest.approx(row["prediction"] - row["target"], abs=0.2)
    kind, content = take(always([0.0, 50.0, 0.0]), "iris")
    assert kind == "rows" and len(content["rows"]) == samples.NUM_ROWS
    assert content["columns"][0] == "sepal length (cm)" and len(content["columns"]) == 4
    for row in content["rows"]:
        assert 4 < row["inputs"][0] < 8 and row["prediction"] == "versicolor" and row["probability"] == 1
        assert row["label"] in ("setosa", "versicolor", "virginica")
