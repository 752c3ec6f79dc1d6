"""What Start would do, for machines with and without GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_gui import plan
from ddp_gui.catalogue import Catalogue, CatalogueError, CatalogueSource, _parse
from ddp_gui.machine import Machine
from ddp_gui.paths import REPOSITORY
from trainers.contract.config import ConfigError

LAPTOP = Machine(num_gpus=0, num_cores=8)
BOX = Machine(num_gpus=8, num_cores=64, gpu_names=("H200",) * 8)
ONE_GPU = Machine(num_gpus=1, num_cores=16)


@pytest.fixture
def catalogue() -> Catalogue:
    dataset = {
        "name": "fashion_mnist", "label": "F", "description": "", "source": "",
        "task": "image_classification",
        "num_train": 8000, "num_validation": 2000, "num_classes": 10, "sample_unit": "images",
    }  # fmt: skip
    model = {"label": "M", "description": ""}
    raw = {
        "datasets": [dataset],
        "models": [
            {
                **model,
                "name": "cnn",
                "tasks": ["image_classification"],
                "num_parameters": {"fashion_mnist": 7},
            },
            {**model, "name": "gpt", "tasks": ["language_modelling"], "num_parameters": {}},
        ],
        "strategies": [{"name": "ddp", "label": "DDP"}],
        "errors": [],
    }
    return _parse(raw)


def test_the_equation_follows_from_batch_ranks_and_samples(catalogue: Catalogue) -> None:
    planned = plan.make({"batch_size": 100, "nproc_per_node": 3, "num_epochs": 2}, catalogue, LAPTOP)
    assert (planned.global_batch, planned.steps_per_epoch, planned.num_steps) == (300, 27, 54)
    assert planned.num_parameters == 7
    shorter = plan.make({"max_steps": 5}, catalogue, LAPTOP)
    assert shorter.num_steps == 5


@pytest.mark.parametrize(
    ("machine", "raw", "ranks", "kind"),
    [
        (LAPTOP, {}, 2, "cpu"),
        (BOX, {}, 8, "cuda"),
        (ONE_GPU, {}, 1, "cuda"),
        (BOX, {"device": "cpu"}, 2, "cpu"),
        (BOX, {"nproc_per_node": 4}, 4, "cuda"),
    ],
)
def test_left_out_ranks_are_what_the_machine_has(
    catalogue: Catalogue, machine: Machine, raw: dict[str, Any], ranks: int, kind: str
) -> None:
    planned = plan.make(raw, catalogue, machine)
    assert (planned.config.nproc_per_node, planned.device_kind) == (ranks, kind)


@pytest.mark.parametrize(
    ("machine", "raw", "words"),
    [
        (ONE_GPU, {"nproc_per_node": 2}, "nproc_per_node is 2, but allowed is: a whole number from 1 to 1"),
        (LAPTOP, {"nproc_per_node": 9}, "nproc_per_node is 9, but allowed is: a whole number from 1 to 8"),
        (LAPTOP, {"device": "cuda"}, "device is 'cuda', but allowed is: auto or cpu"),
        (LAPTOP, {"model": "gpt"}, "one that can learn from fashion_mnist: cnn"),
        (LAPTOP, {"batch_size": 4001}, "batch_size is 4001, but allowed is: at most 4,000"),
        (LAPTOP, {"dataset": "x", "strategy": "y"}, "dataset is 'x'"),
    ],
)
def test_what_cannot_be_is_named_with_what_can(
    catalogue: Catalogue, machine: Machine, raw: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan.make(raw, catalogue, machine)
    assert words in str(refused.value)


def test_a_run_in_the_checkout_is_shown_short() -> None:
    assert plan.shown_run_dir(REPOSITORY / "runs" / "a-1") == "runs/a-1"
    assert plan.shown_run_dir(Path("/elsewhere/a-1")) == "/elsewhere/a-1"


def test_the_catalogue_is_asked_once_and_again_when_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = tmp_path / "package"
    raw = {"models": [], "datasets": [], "strategies": [], "errors": [], "watched_paths": [str(watched)]}
    asked: list[int] = []

    def ask(source: CatalogueSource) -> dict[str, Any]:
        asked.append(1)
        source._cache_file.write_text(json.dumps({"key": source._current_key(raw), "catalogue": raw}))
        return raw

    monkeypatch.setattr(CatalogueSource, "_ask", ask)
    cache = tmp_path / "catalogue.json"
    CatalogueSource(cache).get()
    CatalogueSource(cache).get()
    assert len(asked) == 1, "the second process finds the cache"
    watched.write_text("installed")
    source = CatalogueSource(cache)
    source.get()
    source.get()
    assert len(asked) == 2
    cache.write_text("{half")
    assert CatalogueSource(cache).get().raw == raw
    assert len(asked) == 3, "a damaged cache is not believed"


def test_a_catalogue_that_cannot_be_read_says_the_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddp_gui.catalogue.sys.executable", "false")
    with pytest.raises(CatalogueError, match="could not be read"):
        CatalogueSource(tmp_path / "catalogue.json").get()
