"""Bundled tables match their publications, splits are fixed and stratified, columns are standardized."""

from __future__ import annotations

import pytest
import torch

from trainers.data.dataset import TABULAR_CLASSIFICATION, TABULAR_REGRESSION, DataOptions, Dataset
from trainers.data.tables import BundledTable, TableSplit, read_table, split_rows
from trainers.datasets.breast_cancer import BreastCancer
from trainers.datasets.diabetes import Diabetes
from trainers.datasets.iris import Iris
from trainers.datasets.moons import Moons
from trainers.datasets.sine import Sine
from trainers.datasets.spirals import Spirals
from trainers.datasets.wine import Wine

CPU = torch.device("cpu")
TABLES: dict[str, type[Dataset]] = {
    kind.__name__: kind  # type: ignore[attr-defined, misc]
    for kind in (BreastCancer, Diabetes, Iris, Moons, Sine, Spirals, Wine)
}


def load(name: str, **options: bool) -> tuple[TableSplit, TableSplit]:
    train, validation = TABLES[name](DataOptions(**options)).load(CPU)  # type: ignore[call-arg]
    assert isinstance(train, TableSplit) and isinstance(validation, TableSplit)
    return train, validation


@pytest.mark.parametrize("name", TABLES)
def test_table_is_what_its_description_says(name: str) -> None:
    spec = TABLES[name](DataOptions()).spec()  # type: ignore[call-arg]
    train, validation = load(name)
    assert (len(train), len(validation)) == (spec.num_train, spec.num_validation)
    assert 0.15 < len(validation) / (len(train) + len(validation)) < 0.25
    inputs, targets = train.batch(torch.arange(len(train)))
    assert inputs.shape == (len(train), *spec.input_shape) and inputs.dtype == torch.float32
    assert len(spec.feature_names) == spec.input_shape[0] == len(set(spec.feature_names))
    assert float(inputs.mean(dim=0).abs().max()) < 1e-3
    assert float((inputs.std(dim=0, correction=0) - 1).abs().max()) < 1e-3
    if spec.task == TABULAR_CLASSIFICATION:
        assert targets.dtype == torch.int64 and len(spec.class_names) == spec.num_classes
        assert targets.unique().tolist() == list(range(spec.num_classes))
    else:
        assert spec.num_classes == 1 and targets.dtype == torch.float32
        assert abs(float(targets.mean())) < 1e-3 and abs(float(targets.std(correction=0)) - 1) < 1e-3


@pytest.mark.parametrize(
    ("kind", "shape", "counts", "means"),
    [
        # Number of rows and columns, rows per class and column means from the tables' descriptions.
        (Iris, (150, 4), [50, 50, 50], {"sepal length (cm)": 5.84, "petal width (cm)": 1.20}),
        (Wine, (178, 13), [59, 71, 48], {"alcohol": 13.0, "proline": 746}),
        (BreastCancer, (569, 30), [212, 357], {"mean radius": 14.127}),
        (Diabetes, (442, 10), None, {"age": 48.5, "body mass index": 26.4}),
    ],
)
def test_bundled_tables_are_the_published_ones(
    kind: type[BundledTable], shape: tuple[int, int], counts: list[int] | None, means: dict[str, float]
) -> None:
    names, inputs, targets, classes = read_table(kind.file, kind.task)
    assert inputs.shape == shape
    train, validation = kind(DataOptions(normalise=False)).load(CPU)
    together = torch.cat([train.inputs, validation.inputs]).tolist()
    assert sorted(together) == sorted(inputs.tolist()), "each row once: no overlap, nothing left out"
    for name, mean in means.items():
        assert float(inputs[:, names.index(name)].mean()) == pytest.approx(mean, rel=0.005)
    if counts is not None:
        assert torch.bincount(targets).tolist() == counts and len(classes) == len(counts)
    else:
        assert kind.task == TABULAR_REGRESSION and (targets.min(), targets.max()) == (25, 346)


def test_classes_give_the_same_share_to_validation() -> None:
    labels = torch.tensor([0] * 100 + [1] * 50 + [2] * 2)
    train, validation = split_rows(labels, len(labels))
    assert torch.bincount(labels[validation]).tolist() == [20, 10, 1]
    assert torch.bincount(labels[train]).tolist() == [80, 40, 1]
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(152))
    assert labels[train[:40]].unique().numel() > 1, "the classes are mixed"


def test_generated_points_lie_where_they_are_said_to() -> None:
    x, y = (part.flatten() for part in _in_units(Sine))
    assert float((y - x.sin()).std()) == pytest.approx(0.15, rel=0.1) and float(x.abs().max()) <= 6
    places, arms = _in_units(Spirals)
    assert float(places.norm(dim=1).max()) < 1.15 and torch.bincount(arms.long()).tolist() == [667] * 3
    places, moons = _in_units(Moons)
    upper, lower = (float(places[moons == moon].mean(dim=0)[1]) for moon in (0, 1))
    assert (upper, lower) == pytest.approx((0.64, -0.14), abs=0.05)


def _in_units(kind: type[Sine] | type[Spirals] | type[Moons]) -> tuple[torch.Tensor, torch.Tensor]:
    spec = kind(DataOptions()).spec()
    train, _ = kind(DataOptions(normalise=False)).load(CPU)
    return train.inputs, train.targets * spec.target_std + spec.target_mean
