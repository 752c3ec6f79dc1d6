"""A run and its script compute the same losses, compared step by step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness import ONE_THREAD, TORCHRUN, run_to_end, torchrun_that_forks
from tests.integration.conftest import Ranks
from tests.script_text import config_of, dataset_of, own_dataset, script_of
from tests.unit.ddp_gui.launch.as_code.test_data import OWN
from tests.unit.own_files import own_cache  # noqa: F401 - a fixture
from trainers.contract import events, rundir
from trainers.contract.catalogue import CatalogueDataset
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.local import torchrun

TIME_LIMIT_S = 600
NUM_STEPS = 30
# A step of gpt costs 50 to 150 ms of CPU time, mostly in the same few layers.
NUM_SLOW_STEPS = 4
SHORT = {
    "batch_size": 16,
    "num_epochs": 100,
    "max_steps": NUM_STEPS,
    "eval_every_steps": 1_000,
    "checkpoint_every_steps": 1_000,
}
# Tolerance for strategies that sum gradients in a different order, and for three or more ranks.
CLOSE = 2e-6


def losses_of_run(ranks: Ranks, config: Config, folder: Path) -> dict[int, float]:
    """Train a run and return the loss of each step."""
    run = RunDirectory(folder / "run")
    rundir.make(run, config)
    ranks.start("run", folder, config.world_size)
    return losses_in(run)


def losses_in(run: RunDirectory) -> dict[int, float]:
    found, _ = events.read(run.events)
    return {event["step"]: event["loss"] for event in found if event["kind"] == "step"}


def write_script(config: Config, folder: Path, dataset: CatalogueDataset | None = None) -> None:
    text = script_of(config, dataset, num_threads=1).text
    assert "import trainers" not in text and "ddp_gui" not in text
    (folder / "train.py").write_text(text, encoding="utf-8")


def losses_printed(said: str, folder: Path) -> dict[int, float]:
    """Return the losses printed by a script. Also checks its metrics and its model file."""
    assert re.search(r"^validation loss \S+, (accuracy|RMSE|perplexity) \S+$", said, re.MULTILINE)
    assert (folder / "model.pt").is_file()
    printed = re.findall(r"^step (\d+) loss (\S+)$", said, re.MULTILINE)
    return {int(step): float(loss) for step, loss in printed}


def require_same(
    ranks: Ranks, config: Config, folder: Path, dataset: CatalogueDataset | None = None
) -> dict[int, float]:
    """Check that all losses are bit-identical; return them."""
    expected = losses_of_run(ranks, config, folder)
    write_script(config, folder, dataset)
    assert losses_printed(ranks.start("script", folder, config.world_size), folder) == expected
    return expected


STARTED = {
    "DDP": {"model": "cnn", "dataset": "digits"},
    "one rank": {"model": "tabular_mlp", "dataset": "moons", "nproc_per_node": 1},
}


@pytest.mark.parametrize("settings", STARTED.values(), ids=STARTED)
def test_a_script_that_is_started_as_its_header_says_computes_the_run(
    settings: Mapping[str, Any], tmp_path: Path
) -> None:
    """The run and the script both start with the real torchrun, one process per rank."""
    config = config_of(**SHORT | settings)
    run = RunDirectory(tmp_path / "run")
    arguments = [*torchrun.worker_arguments(config, run.path), "--config", json.dumps(config.changed())]
    code, said = run_to_end(torchrun_that_forks(arguments), TIME_LIMIT_S, ONE_THREAD)
    assert code == 0, said + "".join(path.read_text()[-2000:] for path in run.logs.glob("*"))
    write_script(config, tmp_path)
    header = (tmp_path / "train.py").read_text().split('"""')[1]
    command = next(line.split() for line in header.splitlines() if line.startswith("    "))
    assert command[0] in ("python", "torchrun")
    # Avoid torchrun's default port: other tests run at the same time.
    program = [sys.executable] if command[0] == "python" else [*TORCHRUN, "--standalone"]
    ended = subprocess.run(
        [*program, *command[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    expected = losses_in(run)
    assert len(expected) == NUM_STEPS and losses_printed(ended.stdout, tmp_path) == expected


# One model of each task, and batch normalisation. `tests/unit/ddp_gui/launch/as_code` compares the code of
# each model and of each data set.
PAIRS = [
    ("gpt", "austen"),
    ("bag_of_words", "austen_novels"),
    ("linear", "diabetes"),
    ("resnet", "digits"),
]


@pytest.mark.parametrize(("model", "dataset"), PAIRS)
def test_many_steps_have_the_same_bits(ranks: Ranks, model: str, dataset: str, tmp_path: Path) -> None:
    batch = {"batch_size": 4} if dataset == "austen" else {}  # 64 characters in each sample
    num_steps = NUM_SLOW_STEPS if model == "gpt" else NUM_STEPS
    config = config_of(**SHORT | batch | {"max_steps": num_steps}, model=model, dataset=dataset)
    losses = require_same(ranks, config, tmp_path)
    assert len(losses) == num_steps and len(set(losses.values())) > num_steps / 2


# Run lengths and other options of the form. With 1,437 digits, the last batches of an epoch are uneven.
DIGITS = {"dataset": "digits", "batch_size": 32, "checkpoint_every_steps": 1_000}
SETTINGS: dict[str, dict[str, Any]] = {
    "ZeRO-3": {**SHORT, "dataset": "fashion_mnist", "model": "mlp", "strategy": "zero3"},
    "accumulated, clipped, cosine with a warm-up": {
        **DIGITS, "model": "mlp", "num_epochs": 3, "gradient_accumulation_steps": 3, "max_grad_norm": 0.5,
        "lr_schedule": "cosine", "warmup_ratio": 0.1, "scale_lr": True,
    },
    "experts, accumulated, a short sequence": {
        **SHORT, "dataset": "austen", "model": "gpt_moe", "batch_size": 4, "max_steps": 2,
        "gradient_accumulation_steps": 3, "sequence_length": 16,
    },
    "augmented, decayed, a step schedule": {
        **DIGITS, "model": "cnn", "num_epochs": 3, "random_flip": True, "random_crop": 2, "weight_decay": 0.1,
        "lr_schedule": "step", "lr_step_epochs": 1, "lr_gamma": 0.5,
    },
    "one rank, SGD with Nesterov, one cycle, not normalised": {
        **DIGITS, "dataset": "spirals", "model": "tabular_mlp", "num_epochs": 3, "optimizer": "sgd",
        "nesterov": True, "lr_schedule": "one_cycle", "weight_decay": 0, "normalise": False,
        "nproc_per_node": 1,
    },
    "stopped early by accuracy": {
        **DIGITS, "model": "linear", "num_epochs": 60, "learning_rate": 0.05, "early_stopping_patience": 2,
    },
    "stopped early by RMSE": {
        **DIGITS, "dataset": "diabetes", "model": "tabular_mlp", "num_epochs": 60, "learning_rate": 0.02,
        "early_stopping_patience": 2, "eval_every_steps": 4,
    },
    "Adam, linear after warm-up steps, smoothed labels, loader workers, small buckets, any device": {
        **SHORT, "dataset": "fashion_mnist", "model": "mlp", "optimizer": "adam", "lr_schedule": "linear",
        "warmup_steps": 7, "label_smoothing": 0.1, "seed": 5, "num_workers": 1, "bucket_cap_mb": 1,
        "gradient_as_bucket_view": False, "device": "auto",
    },
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_other_settings_have_the_same_bits(ranks: Ranks, settings: Mapping[str, Any], tmp_path: Path) -> None:
    losses = require_same(ranks, config_of(**settings), tmp_path)
    if "early_stopping_patience" in settings:
        config = config_of(**settings)
        whole = config.num_epochs * config.steps_per_epoch(dataset_of(config.dataset).num_train, 2)
        assert len(losses) < whole, "it did not stop early"


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_own_data_is_trained_on_alike(
    ranks: Ranks,
    kind: str,
    tmp_path: Path,
    own_cache: Path,  # noqa: F811 - both processes read it from the environment
) -> None:
    path = OWN[kind](tmp_path)
    model = {"images": "cnn", "texts": "gru"}[kind]
    config = config_of(dataset="own", data_path=str(path), model=model, batch_size=5, num_epochs=4)
    require_same(ranks, config, tmp_path, own_dataset(path))


@pytest.mark.parametrize(
    ("strategy", "model", "num_ranks"),
    [("zero1", "mlp", 2), ("zero2", "cnn", 2), ("tensor", "vit", 2), ("ddp", "mlp", 3)],
)
def test_sums_in_another_order_are_close(
    ranks: Ranks, strategy: str, model: str, num_ranks: int, tmp_path: Path
) -> None:
    """Gloo and shared memory add three gradients in different orders."""
    config = config_of(**SHORT, dataset="digits", model=model, strategy=strategy, nproc_per_node=num_ranks)
    expected = losses_of_run(ranks, config, tmp_path)
    write_script(config, tmp_path)
    found = losses_printed(ranks.start("script", tmp_path, config.world_size), tmp_path)
    assert found.keys() == expected.keys() and len(found) == NUM_STEPS
    assert max(abs(found[step] - expected[step]) for step in expected) <= CLOSE
