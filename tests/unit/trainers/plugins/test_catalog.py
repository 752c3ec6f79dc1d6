"""Tests of the catalogue: the JSON from which a page without torch knows all plug-ins."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.harness import REPOSITORY
from trainers import registry
from trainers.data.dataset import DataOptions
from trainers.registry import ModelOptions


@pytest.fixture(scope="module")
def catalog() -> dict[str, Any]:
    """Return the catalogue that a new process prints."""
    command = [sys.executable, "-m", "trainers.plugins.catalog"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


@pytest.mark.slow
def test_catalog_has_what_the_repository_brings(catalog: dict[str, Any]) -> None:
    assert {"mlp", "cnn", "gpt"} <= set(by_name(catalog["models"]))
    assert {"fashion_mnist", "digits", "austen"} <= set(by_name(catalog["datasets"]))
    assert {"ddp"} <= set(by_name(catalog["strategies"]))
    assert catalog["errors"] == []
    for entry in catalog["models"] + catalog["datasets"] + catalog["strategies"]:
        assert entry["label"] and entry["description"]


def test_parameter_counts_are_those_of_networks_that_were_really_built(catalog: dict[str, Any]) -> None:
    registry.discover_all()
    counted = 0
    for model in catalog["models"]:
        for dataset, num_parameters in model["sizes"][0]["num_parameters"].items() if model["sizes"] else ():
            if dataset not in ("digits", "austen", "iris"):
                continue
            spec = registry.datasets()[dataset].create(DataOptions()).spec()
            options = ModelOptions(size=model["sizes"][0]["name"])
            network = registry.models()[model["name"]].build(spec, options)
            built = sum(parameter.numel() for parameter in network.parameters())
            assert num_parameters == built, model["name"]
            counted += 1
    assert counted >= 5


def test_models_are_offered_only_for_data_they_can_learn(catalog: dict[str, Any]) -> None:
    datasets = by_name(catalog["datasets"])
    for model in catalog["models"]:
        for size in model["sizes"]:
            assert {datasets[name]["task"] for name in size["num_parameters"]} <= set(model["tasks"])
    assert "austen" in by_name(catalog["models"])["gpt"]["sizes"][0]["num_parameters"]


def test_every_model_trains_with_ddp_and_only_some_can_be_cut(catalog: dict[str, Any]) -> None:
    strategies = {model["name"]: set(model["strategies"]) for model in catalog["models"]}
    assert all("ddp" in offered for offered in strategies.values())
    assert {"tensor", "pipeline"} <= strategies["gpt"]
    assert not {"tensor", "pipeline"} & strategies["cnn"]


def test_what_is_not_installed_is_named_with_how_to_get_it(catalog: dict[str, Any]) -> None:
    for entry in catalog["unavailable"]:
        assert entry["label"] and len(entry["how"]) > 20
    there = {entry["name"] for entry in catalog["unavailable"]} | set(by_name(catalog["datasets"]))
    assert {"rotten_tomatoes", "names", "mnist"} <= there
