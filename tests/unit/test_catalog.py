"""The catalogue: JSON that tells a page without torch all it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainers import registry


@pytest.fixture(scope="module")
def catalog() -> dict[str, Any]:
    """Return what a fresh process prints."""
    root = Path(__file__).resolve().parent.parent.parent
    command = [sys.executable, "-m", "trainers.catalog"]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


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
        for dataset, num_parameters in model["num_parameters"].items():
            spec = registry.datasets()[dataset].create().spec()
            network = registry.models()[model["name"]].build(spec)
            assert num_parameters == sum(parameter.numel() for parameter in network.parameters()), model[
                "name"
            ]
            counted += 1
    assert counted >= 5


def test_models_are_offered_only_for_data_they_can_learn(catalog: dict[str, Any]) -> None:
    datasets = by_name(catalog["datasets"])
    for model in catalog["models"]:
        assert {datasets[name]["task"] for name in model["num_parameters"]} <= set(model["tasks"])
    assert set(by_name(catalog["models"])["gpt"]["num_parameters"]) == {"austen"}


def test_sizes_of_the_data_sets_are_told(catalog: dict[str, Any]) -> None:
    digits = by_name(catalog["datasets"])["digits"]
    assert (digits["num_train"], digits["num_validation"], digits["num_classes"]) == (1437, 360, 10)
    assert digits["sample_unit"] == "images" and "CC BY" in digits["source"]
