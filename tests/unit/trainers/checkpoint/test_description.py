"""Tests of the description in a checkpoint: network, preprocessing of inputs, and meaning of outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainers import build, registry
from trainers.checkpoint import description
from trainers.checkpoint.description import DescriptionError
from trainers.contract.config import Config
from trainers.contract.rundir import Checkpoint, RunDirectory
from trainers.data.dataset import DataOptions, TensorSplit
from trainers.registry import ModelOptions

CPU = torch.device("cpu")
BUNDLED = ["digits", "iris", "diabetes", "moons", "austen", "austen_novels"]
MODEL_OF = {
    "image_classification": "cnn",
    "tabular_classification": "tabular_mlp",
    "tabular_regression": "linear",
    "text_classification": "gru",
    "language_modelling": "gpt",
}


@pytest.fixture(scope="module", autouse=True)
def plugins() -> None:
    registry.discover_all()


def described(name: str, **values: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return the data specification, validation split, network and description for a dataset."""
    options = DataOptions(normalise=values.get("normalise", True))
    data = registry.datasets()[name].create(options)
    spec = data.spec()
    _, validation = data.load(CPU)
    config = Config(dataset=name, model=MODEL_OF[spec.task], **values)
    network = build.build_network(registry.models()[config.model], spec, ModelOptions())
    found = description.describe(config, spec, validation, network)
    return spec, validation, network, json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_the_network_can_be_built_from_the_description_alone(name: str) -> None:
    spec, _, network, found = described(name)
    description.check(found)
    again = description.spec_of(found)
    for field in ("task", "input_shape", "num_classes", "class_names", "vocabulary_size", "padding"):
        assert getattr(again, field) == getattr(spec, field), field
    assert (again.target_mean, again.target_std) == pytest.approx((spec.target_mean, spec.target_std))
    model = found["model"]
    rebuilt = build.build_network(registry.models()[model["name"]], again, ModelOptions(size=model["size"]))
    rebuilt.load_state_dict(network.state_dict())
    assert model["num_parameters"] == sum(each.numel() for each in rebuilt.parameters())


def test_a_split_that_prepares_images_in_its_own_way_must_say_how() -> None:
    class Inverted(TensorSplit):
        def prepare(self, inputs: torch.Tensor, augmentation: object = None) -> torch.Tensor:
            return 1 - inputs

    spec, _, network, _ = described("digits")
    images, labels = torch.rand(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64)
    config = Config(dataset="digits", model="cnn")
    plain = description.describe(config, spec, TensorSplit(images, labels, device=CPU), network)
    assert (plain["input"]["mean"], plain["input"]["std"]) == ([0.0], [1.0])
    with pytest.raises(
        ValueError, match=r"Inverted\.preparation does not describe what its method prepare computes"
    ):
        description.describe(config, spec, Inverted(images, labels, device=CPU), network)


def test_texts_become_the_same_tokens() -> None:
    _, validation, _, found = described("austen_novels")
    tokenizer = description.tokenizer_of(found["input"])
    assert tokenizer is not None
    text = validation.texts[0]
    length = found["input"]["shape"][0]
    tokens = tokenizer.encode([text], length)[0]
    assert tokens == [token for token in validation.batch(torch.tensor([0]))[0][0].tolist() if token]


def test_an_altered_description_is_refused_by_the_name_of_its_field() -> None:
    found = described("iris")[3]
    changes: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
        (lambda each: each.update(format_version=99), "format_version"),
        (lambda each: each["input"].update(shape=[4, -1]), "input.shape"),
        (lambda each: each["input"].update(std=[1.0]), "input.std"),
        (lambda each: each["input"].update(mean=[0, 0, 0, float("inf")]), "input.mean"),
        (lambda each: each["input"].update(columns=[]), "input.columns"),
        (lambda each: each["output"].update(num_classes=2**40), "output.num_classes"),
        (lambda each: each["output"].update(class_names="abc"), "output.class_names"),
        (lambda each: each["model"].update(name=3), "model.name"),
        (lambda each: each.pop("task"), "task"),
    ]
    for change, field in changes:
        altered = json.loads(json.dumps(found))
        change(altered)
        with pytest.raises(DescriptionError, match=field):
            description.check(altered)


def test_an_older_checkpoint_has_none(run: RunDirectory, tmp_path: Path) -> None:
    item = Checkpoint(step=1, path=tmp_path, saved_unix_s=0.0, size_bytes=0)
    assert description.read(item) is None
    (tmp_path / "model.json").write_text("[")
    with pytest.raises(DescriptionError, match=r"model\.json of step 1"):
        description.read(item)
