"""Tests of samples during training: predictions of each task, without effect on the training random state."""

from __future__ import annotations

import base64
import json
import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainers import registry
from trainers.data.dataset import (
    IMAGE_CLASSIFICATION,
    LANGUAGE_MODELLING,
    TABULAR_CLASSIFICATION,
    DataOptions,
    DataSpec,
    ImageSplit,
    Split,
    TensorSplit,
)
from trainers.registry import ModelOptions
from trainers.report import samples
from trainers.report.samples import Scores
from trainers.tasks import image_classification, language_modelling, tabular_regression, text_classification

CPU = torch.device("cpu")
MAX_JSON_BYTES = 8_000  # images are larger


def sample_of(
    scores: Scores,
    spec: DataSpec,
    validation: Split,
    *,
    device: torch.device = CPU,
    seed: int = 0,
    time_limit_s: float | None = None,
) -> tuple[str, Any] | None:
    task = registry.task(spec.task)
    return task.sample(scores, spec, validation, device=device, seed=seed, time_limit_s=time_limit_s)


def take(scores: Scores, dataset_name: str, seed: int = 0) -> tuple[str, Any]:
    """Return a sample of a bundled dataset; assert that the training random state is unchanged."""
    registry.discover_all()
    dataset = registry.datasets()[dataset_name].create(DataOptions())
    _, validation = dataset.load(CPU)
    before = torch.get_rng_state()
    with torch.no_grad():
        taken = sample_of(scores, dataset.spec(), validation, device=CPU, seed=seed)
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


def test_images_come_with_pixels_label_and_the_networks_own_prediction() -> None:
    model = network("mlp", "digits")
    kind, content = take(model, "digits")
    assert kind == "images" and len(content) == image_classification.NUM_IMAGES
    for image in content:
        assert len(as_bytes(image["pixels"])) == image["height"] * image["width"] == 64
        assert image["channels"] == 1
        assert image["label"] in "0123456789" and image["prediction"] in "0123456789"
        assert 0.1 <= image["probability"] <= 1
    assert max(max(as_bytes(image["pixels"])) for image in content) == 255, "bright to the eye"
    _, validation = registry.datasets()["digits"].create(DataOptions()).load(CPU)
    stored, labels = validation.batch(torch.tensor([0]))
    assert content[0]["label"] == str(labels.item())
    assert content[0]["prediction"] == str(model(validation.prepare(stored)).argmax().item())


def test_large_colour_images_are_made_small_and_keep_their_colours() -> None:
    images = torch.zeros(20, 3, 100, 150, dtype=torch.uint8)
    images[:10, 0], images[10:, 2] = 200, 100  # red images, then blue images: sorted by class
    labels = torch.arange(20) // 10
    split = ImageSplit(images, labels, mean=[0.0] * 3, std=[255.0] * 3, device=CPU)
    spec = spec_of(IMAGE_CLASSIFICATION, (3, 100, 150), ("red", "blue"))
    taken = sample_of(lambda x: x.mean(dim=(2, 3))[:, [0, 2]], spec, split, device=CPU, seed=0)
    assert taken is not None and taken[0] == "images"
    first, last = taken[1][0], taken[1][-1]
    assert first["height"] * first["width"] * 3 == len(as_bytes(first["pixels"])) <= samples.MAX_IMAGE_BYTES
    assert first["width"] / first["height"] == pytest.approx(1.5, rel=0.05) and first["channels"] == 3
    assert as_bytes(first["pixels"])[:3] == [255, 0, 0] and as_bytes(last["pixels"])[:3] == [0, 0, 127]
    assert (first["label"], first["prediction"]) == ("red", "red")
    assert (last["label"], last["prediction"]) == ("blue", "blue"), "both classes are among those shown"


@pytest.mark.slow
def test_text_is_written_in_the_data_sets_characters_and_the_same_for_a_seed() -> None:
    model = network("gpt", "austen")
    kind, text = take(model, "austen")
    assert kind == "text" and isinstance(text, str) and len(text) == language_modelling.NUM_CHARACTERS
    assert set(text) <= set(registry.datasets()["austen"].create(DataOptions()).spec().class_names)
    assert take(model, "austen") == ("text", text)
    assert take(model, "austen", seed=1) != ("text", text)


def test_text_is_cut_off_when_the_model_is_too_slow_to_be_waited_for() -> None:
    letters = tuple("\nab")
    spec = spec_of(LANGUAGE_MODELLING, (5,), letters)
    split = TensorSplit(torch.zeros(3, 5, dtype=torch.long), torch.zeros(3), device=CPU)

    def slow(inputs: Tensor) -> Tensor:
        time.sleep(0.02)
        return torch.zeros(*inputs.shape, len(letters))

    taken = sample_of(slow, spec, split, device=CPU, seed=0, time_limit_s=0.1)
    assert taken is not None and 1 <= len(taken[1]) <= 6


def test_each_character_follows_from_the_one_before() -> None:
    """The fake model predicts character p + 1 of the vocabulary after character p."""
    letters = tuple("\nabcdefghij")
    shapes = set()

    def next_letter(inputs: Tensor) -> Tensor:
        shapes.add(tuple(inputs.shape))
        return nn.functional.one_hot((inputs + 1) % len(letters), len(letters)).float() * 100

    spec = spec_of(LANGUAGE_MODELLING, (5,), letters)
    split = TensorSplit(torch.zeros(3, 5, dtype=torch.long), torch.zeros(3), device=CPU)
    taken = sample_of(next_letter, spec, split, device=CPU, seed=0)
    assert taken is not None and taken[1][:12] == "abcdefghij\na"
    assert shapes == {(1, 5)}, "one shape, so that a compiled model is compiled once"


def test_tokens_of_a_trained_model_are_turned_into_text_by_its_own_tokenizer() -> None:
    spec = spec_of(LANGUAGE_MODELLING, (4,), (), num_classes=9, decode=lambda tokens: f"<{tokens[0]}>")
    split = TensorSplit(torch.full((3, 4), 7), torch.zeros(3), device=CPU)
    scores = lambda inputs: torch.zeros(*inputs.shape, 9)  # noqa: E731
    assert sample_of(scores, spec, split, device=CPU, seed=0) == ("text", "<7>"), "begins as the text does"


def test_texts_come_with_what_people_read() -> None:
    kind, content = take(always([0.0, 0.0, math.log(4), 0.0, 0.0, 0.0]), "austen_novels")
    assert kind == "texts" and len(content) == text_classification.NUM_TEXTS
    assert len({one["label"] for one in content}) == 6, "spread over the split, which is sorted by novel"
    for one in content:
        assert one["prediction"] == "Northanger Abbey" and one["probability"] == pytest.approx(
            4 / 9, abs=1e-3
        )
        assert 100 < len(one["text"]) <= text_classification.MAX_TEXT_CHARACTERS


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
    kind, content = take(always([0.0, 50.0, 0.0]), "iris")
    assert kind == "rows" and len(content["rows"]) == samples.NUM_ROWS
    assert content["columns"][0] == "sepal length (cm)" and len(content["columns"]) == 4
    for row in content["rows"]:
        assert 4 < row["inputs"][0] < 8 and row["prediction"] == "versicolor" and row["probability"] == 1
        assert row["label"] in ("setosa", "versicolor", "virginica")


def test_rows_of_a_number_to_predict_are_in_its_units() -> None:
    kind, content = take(lambda inputs: torch.ones(len(inputs), 1), "diabetes")
    spec = registry.datasets()["diabetes"].create(DataOptions()).spec()
    assert kind == "rows"
    for row in content["rows"]:
        assert row["prediction"] == pytest.approx(spec.target_mean + spec.target_std, rel=1e-3)
        assert 25 <= row["target"] <= 346 and row["target"] == pytest.approx(round(row["target"]), abs=0.06)
        assert row["error"] == pytest.approx(row["prediction"] - row["target"], abs=0.2)


def test_table_of_many_classes_is_shown_in_rows_for_want_of_colours() -> None:
    names = tuple(f"class {number}" for number in range(8))
    split = TensorSplit(torch.rand(5, 2), torch.arange(5), device=CPU)
    spec = spec_of(TABULAR_CLASSIFICATION, (2,), names)
    taken = sample_of(always([0.0] * 8), spec, split, device=CPU, seed=0)
    assert taken is not None and taken[0] == "rows" and len(taken[1]["rows"]) == 5
    assert taken[1]["columns"] == [], "a split that does not know its units shows none"


def test_model_that_has_diverged_is_still_shown() -> None:
    _, content = take(always([math.nan, math.nan]), "moons")
    assert set(as_bytes(content["confidence"])) == {0}


def spec_of(task: str, shape: tuple[int, ...], names: tuple[str, ...], **others: Any) -> DataSpec:
    """Return the specification of a dataset that exists only in this test."""
    fields: dict[str, Any] = {"num_classes": len(names), "num_train": 1, "num_validation": 1} | others
    return DataSpec(
        task=task,
        input_shape=shape,
        class_names=names,
        sample_unit="samples",
        description="",
        source="",
        **fields,
    )
