"""The code of each data set reads the same tensors as the data set itself, bit by bit."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_gui.launch.as_code import data, script, templates
from ddp_gui.launch.as_code.templates import NotAsCodeError
from tests.script_text import config_of, dataset_of, own_dataset
from tests.unit.own_files import make_images, own_cache, write  # noqa: F401 - a fixture
from trainers import registry
from trainers.contract.catalogue import CatalogueDataset
from trainers.contract.config import Config
from trainers.data.dataset import DataOptions, NotInstalledError, Split

registry.discover_all()
BUNDLED = [name for name, entry in registry.datasets().items() if not entry.needs_path]
CPU = torch.device("cpu")


def read(config: Config, dataset: CatalogueDataset) -> tuple[data.DataCode, dict[str, Any]]:
    """Execute the code of a data set; return it, and the names that it assigns."""
    code = data.data_code(config, dataset)
    names: dict[str, Any] = {"torch": torch}
    exec(f"{script.imports_of(code.text)}\n{templates.spaced(code.text)}\nimport math\n", names)
    return code, names


def require_same(config: Config, dataset: CatalogueDataset) -> None:
    """Compare both splits, the shape and the vocabulary with those of the data set."""
    entry = registry.datasets()[config.dataset].create(DataOptions.of(config))
    code, names = read(config, dataset)
    for split, part in zip(entry.load(CPU), ("train", "valid"), strict=True):
        inputs, targets = everything(split)
        found = names[f"{part}_x"]
        found = names["prepare"](found) if code.is_image else found
        assert found.dtype == inputs.dtype and torch.equal(found, inputs)
        assert names[f"{part}_y"].dtype == targets.dtype and torch.equal(names[f"{part}_y"], targets)
    spec = entry.spec()
    assert code.shape.inputs == spec.input_shape
    assert eval(code.shape.num_outputs, names) == spec.num_classes
    assert eval(code.shape.vocabulary or "0", names) == spec.vocabulary_size
    if spec.task == data.REGRESSION:
        assert eval(code.target_std, names) == spec.target_std


def everything(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = split.batch(torch.arange(len(split)))
    return split.prepare(inputs), targets


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_data_set_is_read_alike(name: str) -> None:
    try:
        dataset = dataset_of(name)
    except NotInstalledError as error:
        pytest.skip(f"the package of this data set is not installed: {error}")
    require_same(config_of(dataset=name), dataset)


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kind", ["images", "classes", "numbers", "texts", "text"])
def test_own_data_is_read_as_it_was_prepared(kind: str, normalise: bool, tmp_path: Path) -> None:
    path = OWN[kind](tmp_path)
    config = config_of(dataset="own", data_path=str(path), normalise=normalise)
    require_same(config, own_dataset(path, normalise=normalise))


def table(path: Path, header: str, rows: list[list[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


def row(index: int) -> list[str]:
    return [f"{150.5 + index * 7 % 31}", ("red", "green", "blue")[index % 3], f"{index * 5 % 13}"]


WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "nine", "dogs", "run", "far", "away"]
OWN = {
    "images": lambda folder: make_images(folder / "images", {"a": 11, "b": 14}),
    "classes": lambda folder: table(
        folder / "t.csv",
        "height,colour,number,tall",
        [[*row(i), "yes" if i % 5 > 1 else "no"] for i in range(60)],
    ),
    "numbers": lambda folder: table(
        folder / "t.csv", "height,colour,number,target", [[*row(i), f"{3.25 * i - 7}"] for i in range(60)]
    ),
    "texts": lambda folder: table(
        folder / "t.csv",
        "text,label",
        [
            [" ".join(WORDS[i % 5 : i % 5 + 7]) + f" number {i}", "good" if i % 2 else "bad"]
            for i in range(60)
        ],
    ),
    "text": lambda folder: write(
        folder / "t.txt", *(f"{' '.join(WORDS[i % 7 :])}, line {i}." for i in range(200))
    ),
}


def test_own_data_that_is_not_prepared_is_not_written(own_cache: Path) -> None:  # noqa: F811
    dataset = replace(dataset_of("iris"), name="own", prepared="0" * 32)
    for prepared in ("0" * 32, "", "../../etc"):
        with pytest.raises(NotAsCodeError, match="not been prepared"):
            data.data_code(config_of(dataset="own", data_path="x"), replace(dataset, prepared=prepared))
    damaged = own_cache / ("0" * 32)
    damaged.mkdir()
    (damaged / "meta.json").write_text('{"arrays": 1}')
    with pytest.raises(NotAsCodeError, match="not been prepared"):
        data.data_code(config_of(dataset="own", data_path="x"), dataset)
