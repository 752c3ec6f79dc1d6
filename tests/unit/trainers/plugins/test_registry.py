"""Tests of plug-ins: unique names, broken files, and the catalogue that a page without torch reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import REPOSITORY
from trainers import build, registry
from trainers.data.dataset import DataOptions
from trainers.files import plain_files
from trainers.files.plain_files import PLUGINS_VARIABLE
from trainers.registry import ModelOptions


@pytest.mark.parametrize("what", ["model", "data set", "strategy"])
def test_duplicate_name_raises_and_the_first_one_stays(what: str) -> None:
    assert registry.discover_all() == []
    decorate, table, name = {
        "model": (
            registry.register_model("cnn", label="", description="", tasks=()),
            registry.models(),
            "cnn",
        ),
        "data set": (registry.register_dataset("digits", label=""), registry.datasets(), "digits"),
        "strategy": (
            registry.register_strategy("ddp", label="", description="", sharing=""),
            registry.strategies(),
            "ddp",
        ),
    }[what]
    first = table[name]
    with pytest.raises(ValueError, match=f"already a {what} called '{name}'"):
        decorate(object)  # type: ignore[operator]
    assert table[name] is first


def test_own_files_are_found_next_to_the_built_in_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, own = tmp_path / "some_plugins", tmp_path / "own" / "some_plugins"
    for folder in (package, own):
        folder.mkdir(parents=True)
        (folder / "same_name.py").touch()
    (package / "__init__.py").touch()
    (own / "mine.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS_VARIABLE, str(tmp_path / "own"))
    before = plain_files.fingerprint_of_code()
    try:
        (broken,) = registry.discover("some_plugins")
        assert sys.modules["some_plugins.mine"].LOADED
    finally:
        for name in [name for name in sys.modules if name.startswith("some_plugins")]:
            del sys.modules[name]
    assert broken.message == "ValueError: there are two files same_name.py: rename yours"
    (own / "mine.py").write_text("LOADED = False\n")
    assert plain_files.fingerprint_of_code() != before, "the page reads the catalogue again"


def test_name_that_is_not_there_names_field_value_and_what_there_is() -> None:
    with pytest.raises(ValueError, match="model is") as caught:
        build.pick({"cnn": 1, "mlp": 2}, "cnm", "model")
    assert str(caught.value) == "model is 'cnm', but there are: cnn, mlp (did you mean cnn?)"
    assert build.pick({"cnn": 1}, "cnn", "model") == 1


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
    for entry in catalog["unavailable"]:
        assert entry["label"] and len(entry["how"]) > 20
    there = {entry["name"] for entry in catalog["unavailable"]} | set(by_name(catalog["datasets"]))
    assert {"rotten_tomatoes", "names", "mnist"} <= there


def test_models_are_offered_only_for_data_and_strategies_that_fit(catalog: dict[str, Any]) -> None:
    datasets, models = by_name(catalog["datasets"]), by_name(catalog["models"])
    for model in models.values():
        assert "ddp" in model["strategies"]
        for size in model["sizes"]:
            assert {datasets[name]["task"] for name in size["num_parameters"]} <= set(model["tasks"])
    assert "austen" in models["gpt"]["sizes"][0]["num_parameters"]
    assert {"tensor", "pipeline"} <= set(models["gpt"]["strategies"])
    assert not {"tensor", "pipeline"} & set(models["cnn"]["strategies"])


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
