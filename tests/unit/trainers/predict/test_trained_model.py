"""A trained model gives the predictions of its network and rejects invalid inputs."""

from __future__ import annotations

import base64
import io
import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.unit.trained_runs import CPU, leave_trained_run
from trainers import registry
from trainers.data.dataset import DataOptions
from trainers.predict.prepare import InputError
from trainers.predict.trained_model import TrainedModel, find_checkpoint, load

NUM_VALIDATION = 5


def model_of(run: Any, step: int | None = None) -> TrainedModel:
    return load(run, find_checkpoint(run, step))


def validation_of(dataset: str) -> Any:
    return registry.datasets()[dataset].create(DataOptions()).load(CPU)[1]


def probabilities(found: dict[str, Any]) -> list[float]:
    return [each["probability"] for each in found["probabilities"]]


def png(pixels: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_the_pixels_of_a_validation_image_give_the_same_probabilities_as_in_training(tmp_path: Path) -> None:
    run, network, _ = leave_trained_run(tmp_path, "digits", "cnn")
    validation = validation_of("digits")
    images, _ = validation.batch(torch.arange(NUM_VALIDATION))
    with torch.no_grad():
        expected = network(validation.prepare(images)).softmax(-1)
    model = model_of(run)
    for image, wanted in zip(images, expected, strict=True):
        found = model.predict({"pixels": image[0].tolist()})
        assert probabilities(found) == pytest.approx(wanted.tolist(), abs=1e-6)
        assert found["prediction"] == str(int(wanted.argmax()))
        # The same image as a file with byte values up to 255.
        file = model.predict({"image": png(np.asarray(image[0]) * (255 / 16))})
        assert probabilities(file) == pytest.approx(wanted.tolist(), abs=1e-6)


def test_a_drawing_is_centred_and_as_large_as_the_images_of_the_data(tmp_path: Path) -> None:
    run, _, _ = leave_trained_run(tmp_path, "digits", "cnn")
    model = model_of(run)
    paper = np.zeros((280, 280))
    paper[20:120, 30:60] = 255  # a "1" in a corner
    corner = model.predict({"drawing": png(paper)})
    moved = np.roll(paper, (100, 120), axis=(0, 1))
    assert probabilities(model.predict({"drawing": png(moved)})) == pytest.approx(
        probabilities(corner), abs=0.05
    )
    seen = base64.b64decode(corner["input"]["image"]["pixels"])
    picture = np.frombuffer(seen, np.uint8).reshape(8, 8)
    middle = (picture.sum(0) * np.arange(8)).sum() / picture.sum()
    assert 3 < middle < 4
    with pytest.raises(InputError, match="the drawing is empty"):
        model.predict({"drawing": png(np.zeros((28, 28)))})


def test_a_row_in_its_own_units_gives_the_same_answer_as_in_training(tmp_path: Path) -> None:
    for dataset in ("iris", "diabetes"):
        run, network, spec = leave_trained_run(tmp_path, dataset, "tabular_mlp")
        validation = validation_of(dataset)
        row = validation.inputs[3] * validation.feature_std + validation.feature_mean
        with torch.no_grad():
            expected = network(validation.inputs[3:4])[0]
        found = model_of(run).predict({"row": dict(zip(spec.feature_names, row.tolist(), strict=True))})
        if dataset == "iris":
            assert probabilities(found) == pytest.approx(expected.softmax(-1).tolist(), abs=1e-5)
        else:
            value = float(expected[0]) * spec.target_std + spec.target_mean
            assert found["value"] == pytest.approx(value, rel=1e-4)


def test_a_seed_repeats_a_text_and_greedy_text_is_the_most_probable(tmp_path: Path) -> None:
    run, network, spec = leave_trained_run(tmp_path, "austen", "gpt")
    model = model_of(run)

    def text(prompt: str = "It is", **values: Any) -> str:
        options = {"temperature": 1.0, "top_k": None, "num_tokens": 12, "seed": 1} | values
        return "".join(token["text"] for token in model.generate(prompt, **options))

    assert len(text()) == 12
    assert text() == text() != text(seed=2)
    assert text(top_k=1) == text(temperature=0.0, seed=9)
    tokens = torch.tensor([[spec.class_names.index(letter) for letter in "It is"]])
    with torch.no_grad():
        first = network(tokens)[0, -1]
    assert text(temperature=0.0)[0] == spec.class_names[int(first.argmax())]
    long = text("word " * 40)  # longer than the context window of the model
    assert len(long) == 12
    token = next(model.generate("a", temperature=1.0, top_k=None, num_tokens=1, seed=0))
    assert 0 < token["probability"] < 1 and len(token["others"]) == 4
    for wrong in ({"temperature": -1}, {"top_k": 0}, {"num_tokens": 10**9}, {"temperature": float("nan")}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            text(**wrong)
    with pytest.raises(InputError, match="never saw: ☃"):
        text("☃")
    with pytest.raises(InputError, match="use generate"):
        model.predict({"text": "a"})


# A PNG file of 60,000 × 60,000 pixels: a header without content.
HUGE_IMAGE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
HUGE_IMAGE += zlib.crc32(HUGE_IMAGE[12:]).to_bytes(4, "big") + b"\0\0\0\0IDAT\x35\xaf\x06\x1e"
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "digits": [
        ({}, "inputs has nothing, but this model takes: image"),
        ({"image": 7}, "image is '7'"),
        ({"image": base64.b64encode(b"MZ not an image").decode()}, "image cannot be read"),
        ({"image": base64.b64encode(HUGE_IMAGE).decode()}, "image cannot be read: .*pixels"),
        ({"pixels": [[1, 2], [3]]}, "pixels is not rectangular"),
        ({"pixels": [[1, 2], [3, 4]]}, r"pixels has the shape \[1, 2, 2\]"),
    ],
    "iris": [
        ({"row": [1, 2]}, "row is"),
        ({"row": {"colour": "red"}}, "row has 'colour', but the columns are: sepal"),
        ({"row": dict.fromkeys(("sepal length (cm)",), "wide")}, "'wide'; allowed: a number"),
    ],
    "austen_novels": [
        ({"text": ""}, "text is empty"),
        ({"text": "a " * 60_000}, "text has 120,000 characters; allowed: 100,000"),
        ({"image": ""}, "takes: text"),
    ],
}  # fmt: skip
MODELS = {"digits": "linear", "iris": "linear", "austen_novels": "bag_of_words"}


@pytest.mark.parametrize("dataset", WRONG)
def test_a_wrong_input_is_refused_by_the_name_of_its_field(dataset: str, tmp_path: Path) -> None:
    run, _, _ = leave_trained_run(tmp_path, dataset, MODELS[dataset])
    model = model_of(run)
    for inputs, message in WRONG[dataset]:
        with pytest.raises(InputError, match=message):
            model.predict(inputs)


@pytest.mark.parametrize(
    ("dataset", "model", "kind"),
    [("digits", "cnn", "images"), ("iris", "linear", "table"), ("austen_novels", "bag_of_words", "texts")],
)
def test_the_nearest_sample_of_a_validation_sample_is_itself(
    dataset: str, model: str, kind: str, tmp_path: Path
) -> None:
    run, _, spec = leave_trained_run(tmp_path, dataset, model)
    validation = validation_of(dataset)
    inputs, labels = validation.batch(torch.tensor([0]))
    if kind == "images":
        sent: dict[str, Any] = {"pixels": inputs[0, 0].tolist()}
    elif kind == "texts":
        sent = {"text": validation.texts[0]}
    else:
        row = (inputs[0] * validation.feature_std + validation.feature_mean).tolist()
        sent = {"row": dict(zip(spec.feature_names, row, strict=True))}
    found = model_of(run).nearest(sent, 4)
    shown = found["table"]["rows"] if kind == "table" else found[kind]
    assert len(shown) == 4 and shown[0]["label"] == spec.class_names[int(labels[0])]
    distances = [each["distance"] for each in shown]
    assert distances == sorted(distances) and distances[0] == pytest.approx(0, abs=1e-2)


def test_an_image_is_turned_moved_and_made_noisy_as_asked(tmp_path: Path) -> None:
    run, _, _ = leave_trained_run(tmp_path, "digits", "linear")
    model = model_of(run)
    pixels = np.zeros((8, 8))
    pixels[2, :4] = 16  # a line from the left edge: the background, not the line, comes in when it is moved

    def seen(**variation: float) -> np.ndarray[Any, Any]:
        found = model.predict({"pixels": pixels.tolist()} | variation)["input"]["image"]["pixels"]
        return np.frombuffer(base64.b64decode(found), np.uint8).reshape(8, 8)

    plain = seen()
    assert np.array_equal(seen(rotate=0, shift=0, noise=0), plain)
    assert np.array_equal(seen(rotate=180), plain[::-1, ::-1])
    assert np.array_equal(seen(rotate=90), np.rot90(plain, -1))  # clockwise
    assert np.array_equal(seen(shift=0.25), np.roll(plain, 2, axis=1))
    noisy = seen(noise=0.2)
    assert np.array_equal(noisy, seen(noise=0.2)) and not np.array_equal(noisy, plain)
    for wrong in ({"rotate": 181}, {"shift": "far"}, {"noise": -1}, {"noise": float("nan")}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} is .* a number from"):
            seen(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dataset", "model", "kind"),
    [("digits", "cnn", "images"), ("iris", "linear", "table"), ("austen_novels", "bag_of_words", "texts")],
)
def test_the_samples_behind_a_confusion_are_those_of_the_matrix(
    dataset: str, model: str, kind: str, tmp_path: Path
) -> None:
    run, network, spec = leave_trained_run(tmp_path, dataset, model)
    validation = validation_of(dataset)
    inputs, labels = validation.batch(torch.arange(len(validation)))
    with torch.no_grad():
        answers = network(validation.prepare(inputs)).softmax(-1)
    trained = model_of(run)
    counts = np.zeros((spec.num_classes, spec.num_classes), int)
    np.add.at(counts, (labels.numpy(), answers.argmax(-1).numpy()), 1)
    for label, prediction in itertools.product(range(spec.num_classes), repeat=2):
        found = trained.confused(label, prediction, 20)
        assert (found["num_found"], found["num_looked_at"]) == (counts[label, prediction], len(validation))
        items = found.get("table", {}).get("rows", []) if kind == "table" else found.get(kind, [])
        assert len(items) == min(20, counts[label, prediction])
        assert all(item["label"] == spec.class_names[label] for item in items)
        sure = [item["probability"] for item in items]
        assert sure == sorted(sure, reverse=True)
    with pytest.raises(InputError, match="label is 99; allowed: 0 to"):
        trained.confused(99, 0, 1)
