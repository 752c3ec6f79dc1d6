"""The linear reference models match those of scikit-learn on the same split to within 0.01."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.own_files import own_cache, write  # noqa: F401 - a fixture
from trainers import registry
from trainers.contract import config
from trainers.data.dataset import DataOptions, DataSpec, Split, TensorSplit
from trainers.plugins import references

CPU = torch.device("cpu")


def loaded(name: str) -> tuple[DataSpec, Split, Split]:
    registry.discover_all()
    dataset = registry.datasets()[name].create(DataOptions())
    return dataset.spec(), *dataset.load(CPU)


def targets(split: Split) -> Any:
    return split.targets_of(torch.arange(len(split))).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "breast_cancer", "digits", "spirals"])
def test_logistic_regression_is_that_of_scikit_learn(name: str) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="a development requirement")
    spec, train, validation = loaded(name)
    label, metrics = references.reference(spec, train, validation)
    assert label == "logistic regression"
    inputs, others = references.standardised(train, validation)
    theirs = linear_model.LogisticRegression(max_iter=10_000, tol=1e-6).fit(inputs.numpy(), targets(train))
    assert metrics["accuracy"] == pytest.approx(theirs.score(others.numpy(), targets(validation)), abs=0.01)
    weights, _ = references.fit_logistic(inputs, torch.from_numpy(targets(train)), spec.num_classes)
    assert weights.T.numpy() == pytest.approx(theirs.coef_, abs=0.02), "the same minimum"


@pytest.mark.slow
def test_texts_are_weighted_and_fitted_as_by_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="a development requirement")
    text = pytest.importorskip("sklearn.feature_extraction.text", reason="a development requirement")
    spec, *whole = loaded("austen_novels")
    train, validation = (
        TensorSplit(split.inputs[:: len(split) // 600], split.targets[:: len(split) // 600], device=CPU)
        for split in whole
    )
    label, metrics = references.reference(spec, train, validation)
    assert label == "logistic regression on word counts"
    rows = [
        [" ".join(str(token) for token in row if token != spec.padding) for row in split.inputs.tolist()]
        for split in (train, validation)
    ]
    vectors = text.TfidfVectorizer(token_pattern=r"\S+")
    theirs = linear_model.LogisticRegression(max_iter=1000).fit(
        vectors.fit_transform(rows[0]), targets(train)
    )
    expected = theirs.score(vectors.transform(rows[1]), targets(validation))
    assert metrics["accuracy"] == pytest.approx(expected, abs=0.01)
    assert expected > 0.3, "six novels: more than guessing"


def test_least_squares_is_that_of_scikit_learn_also_where_columns_depend_on_each_other() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="a development requirement")
    spec, train, validation = loaded("diabetes")
    label, metrics = references.reference(spec, train, validation)
    inputs, others = references.standardised(train, validation)
    theirs = linear_model.LinearRegression().fit(inputs.numpy(), targets(train))
    assert label == "linear least squares"
    assert metrics["r2"] == pytest.approx(theirs.score(others.numpy(), targets(validation)), abs=1e-3)
    twice = [
        TensorSplit(split.inputs.repeat(1, 2), split.targets, device=CPU) for split in (train, validation)
    ]
    assert references.reference(spec, *twice)[1] == pytest.approx(metrics, rel=1e-6)


def test_large_data_and_language_models_have_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "MOST_PRODUCTS", 1_000)
    assert references.reference(*loaded("iris")) == ("", {})
    answer = references.references_of(config.parse({"dataset": "iris", "model": "linear"}))
    assert answer == {"num_train": 120, "num_validation": 30, "references": []}
