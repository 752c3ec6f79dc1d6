"""A run that starts from another run's checkpoint: real ranks, other classes, strategies, exact resume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.harness import Launcher, LiveRun, run_to_end
from tests.integration.test_finetune import needs, write_stand_in
from tests.unit.ddp_gui.train.test_start_run import MACHINES
from tests.unit.ddp_gui.train.test_start_run import start as start_run
from tests.unit.trained_runs import leave_trained_run
from trainers.checkpoint import loaded_state
from trainers.contract import config as config_module
from trainers.contract import rundir, start_from
from trainers.contract.rundir import RunDirectory
from trainers.data.dataset import DataOptions
from trainers.datasets.digits import Digits
from trainers.engines.local.torchrun import torchrun_command
from trainers.predict import trained_model

pytestmark = pytest.mark.integration

CLASSES = ("three", "five", "eight", "none of them")
# With this learning rate a step changes no weight by more than rounding.
UNCHANGED = {"max_steps": 1, "learning_rate": 1e-9, "weight_decay": 0.0, "device": "cpu", "batch_size": 8}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINERS_CACHE", str(tmp_path / "prepared"))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of grey 8 × 8 images with bytes to 240 in four classes; the data set goes to 16."""
    split, _ = Digits(DataOptions()).load(torch.device("cpu"))
    number_of = {3: 0, 5: 1, 8: 2, 0: 3}
    for index in range(500):
        pixels, label = split.images[index, 0], int(split.labels[index])
        if label in number_of:
            folder = tmp_path / "images" / CLASSES[number_of[label]]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15).numpy()).save(folder / f"{index}.png")
    return tmp_path / "images"


def start(launcher: Launcher, source: RunDirectory, **values: object) -> LiveRun:
    """Start a run from step 1 of another, as the page does: its copy of the weights is made first."""
    model = source.read_config().model
    settings = config_module.parse({"model": model, **values, "start_from": f"{source.run_id}/1"})
    found, item = start_from.find(launcher.runs_dir, settings.start_from)
    run = rundir.create(launcher.runs_dir, settings, lambda made: start_from.copy(found, item, made))
    return launcher.start_run(run).finish()


def weights_of(run: RunDirectory) -> dict[str, Tensor]:
    return loaded_state.read_weights(run.list_checkpoints()[-1].path)


def are_equal(before: dict[str, Tensor], now: dict[str, Tensor], *, except_for: list[str]) -> bool:
    return all(
        torch.allclose(before[name], now[name], atol=1e-6) for name in before if name not in except_for
    )


def test_other_classes_keep_all_weights_but_the_head_and_resume_is_exact(
    launcher: Launcher, images: Path
) -> None:
    source = leave_trained_run(launcher.runs_dir, "digits", "cnn")[0]
    own = {"dataset": "own", "data_path": str(images)}
    live = start(launcher, source, **UNCHANGED, **own)
    plan = live.events("plan")[-1]["start"]
    assert plan == {
        "run_id": source.run_id,
        "step": 1,
        "replaced": ["9.weight", "9.bias"],
        "num_classes_before": 10,
        "num_classes": 4,
    }
    before, now = weights_of(source), weights_of(live.run)
    assert are_equal(before, now, except_for=plan["replaced"])
    assert now["9.weight"].shape[0] == 4
    about = trained_model.load(live.run, live.run.list_checkpoints()[-1]).about
    of_source = trained_model.load(source, source.list_checkpoints()[-1]).about
    assert set(about["output"]["class_names"]) == set(CLASSES)
    # 255 instead of 16 for white: the network gets the same numbers for the same drawing.
    assert about["input"]["mean"] == pytest.approx([of_source["input"]["mean"][0] * 255 / 16])

    often = {"max_steps": 12, "checkpoint_every_steps": 4, "keep_last_checkpoints": None, "batch_size": 16}
    trained = start(launcher, source, **own, **often, device="cpu")
    # The run has its own copy.
    shutil.rmtree(source.path)
    again = launcher.start_run(trained.run, resume_step=4).finish()
    assert again.losses() == {step: loss for step, loss in trained.losses().items() if step > 4}
    assert again.events("plan")[-1]["start"] == plan


@pytest.mark.parametrize("strategy", ["zero1", "zero3", "tensor"])
def test_every_strategy_starts_from_whole_weights(launcher: Launcher, strategy: str) -> None:
    source = leave_trained_run(launcher.runs_dir, "digits", "vit")[0]
    values = {**UNCHANGED, "dataset": "digits", "strategy": strategy, "nproc_per_node": 2}
    live = start(launcher, source, **values)
    assert live.events("plan")[-1]["start"]["replaced"] == []
    assert are_equal(weights_of(source), weights_of(live.run), except_for=[])


def test_texts_are_read_with_the_words_of_the_checkpoint(launcher: Launcher, tmp_path: Path) -> None:
    source = leave_trained_run(launcher.runs_dir, "austen_novels", "bag_of_words")[0]
    rows = [
        f"the {'good' if row % 2 else 'bad'} xylophone {row},{'yes' if row % 2 else 'no'}"
        for row in range(60)
    ]
    (tmp_path / "texts.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    live = start(launcher, source, **UNCHANGED, dataset="own", data_path=str(tmp_path / "texts.csv"))
    assert live.events("plan")[-1]["start"]["replaced"] == ["scores.weight", "scores.bias"]
    assert are_equal(weights_of(source), weights_of(live.run), except_for=["scores.weight", "scores.bias"])
    about, before = (trained_model.load(run, run.list_checkpoints()[-1]).about for run in (live.run, source))
    assert about["input"]["tokenizer"] == before["input"]["tokenizer"]
    assert about["input"]["shape"] == before["input"]["shape"]


def test_a_language_model_keeps_its_letters_and_starts_in_a_pipeline(
    launcher: Launcher, tmp_path: Path
) -> None:
    source = leave_trained_run(launcher.runs_dir, "austen", "gpt")[0]
    (tmp_path / "text.txt").write_text("It was ☃ a dark and stormy night. " * 400)
    values = {**UNCHANGED, "dataset": "own", "data_path": str(tmp_path / "text.txt"), "strategy": "pipeline"}
    live = start(launcher, source, **values)
    assert are_equal(weights_of(source), weights_of(live.run), except_for=[])
    model, before = (trained_model.load(run, run.list_checkpoints()[-1]) for run in (live.run, source))
    assert model.about["input"] == before.about["input"]
    assert live.events("sample")[-1]["content"], "it writes in the letters of the checkpoint"


@needs("transformers")
def test_a_pretrained_language_model_is_trained_further_on_own_text(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = {"pretrained_path": str(write_stand_in(tmp_path / "gpt2", "gpt2"))}
    source = leave_trained_run(launcher.runs_dir, "austen", "hf_causal", sequence_length=32, **folder)[0]
    (tmp_path / "text.txt").write_text("It was ☃ a dark and stormy night. " * 400)
    own = {"dataset": "own", "data_path": str(tmp_path / "text.txt"), "sequence_length": 32}
    live = start(launcher, source, **UNCHANGED, **folder, **own, strategy="zero2")
    assert live.events("plan")[-1]["start"]["replaced"] == []
    assert are_equal(weights_of(source), weights_of(live.run), except_for=[])
    model, before = (trained_model.load(run, run.list_checkpoints()[-1]) for run in (live.run, source))
    assert model.about["input"] == before.about["input"]


@needs("timm")
def test_a_network_of_timm_keeps_all_weights_but_the_head(launcher: Launcher, images: Path) -> None:
    size = {"model_size": "convnext_atto"}  # without batch norm, whose statistics change in the first step
    source = leave_trained_run(launcher.runs_dir, "digits", "timm_image", **size)[0]
    live = start(launcher, source, **UNCHANGED, **size, dataset="own", data_path=str(images))
    head = ["network.head.fc.weight", "network.head.fc.bias"]
    assert live.events("plan")[-1]["start"]["replaced"] == head
    assert are_equal(weights_of(source), weights_of(live.run), except_for=head)


def test_own_texts_are_inspected_in_the_length_of_the_checkpoint(tmp_path: Path) -> None:
    """The page finds the inspection of own data by its settings, of which the length is one."""
    source = leave_trained_run(tmp_path, "austen", "gpt", sequence_length=32)[0]
    (tmp_path / "text.txt").write_text("It was a dark and stormy night. " * 400)
    raw = {"dataset": "own", "data_path": str(tmp_path / "text.txt"), "start_from": f"{source.run_id}/1"}
    planned = start_run(MACHINES["two cores"], tmp_path, raw)
    assert (planned.config.model, planned.config.sequence_length) == ("gpt", 32)


def test_the_command_makes_the_copy_itself_and_names_a_tensor_that_does_not_fit(launcher: Launcher) -> None:
    source = leave_trained_run(launcher.runs_dir, "digits", "cnn")[0]
    values = {**UNCHANGED, "model": "cnn", "start_from": f"{source.run_id}/1", "nproc_per_node": 1}
    for dataset, is_right in (("digits", True), ("fashion_mnist", False)):
        settings = config_module.parse({**values, "dataset": dataset})
        run = RunDirectory(launcher.runs_dir / f"by-hand-{dataset}")
        code, said = run_to_end(torchrun_command(settings, str(run.path)), 180.0)
        assert (code == 0) is is_right, said
    log = run.rank_log(0).read_text()
    assert (
        "inputs of 1 × 8 × 8, but this data has 1 × 28 × 28: the tensor 7.weight has shape 128 × 128" in log
    )
