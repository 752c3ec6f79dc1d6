"""`watch.save` and `watch.load` in one process: random numbers after a resume, and refused values."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.harness import wait_until
from trainers.contract import checkpoint_files, events, rundir
from trainers.contract.checkpoint_files import Sealing
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.watch import spool
from trainers.watch.collector import Collector
from trainers.watch.recorder import Recorder
from trainers.watch.saving import Saving
from trainers.watch.spool import Control, SpoolWriter

BATCHES, EPOCHS = 4, 3


class Noisy(Dataset[Tensor]):
    """Samples that are augmented at random when they are read."""

    def __len__(self) -> int:
        return 2 * BATCHES

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.rand(1)


class Rank:
    """What `Saving` needs of a recorder: rank 0 of a run with one rank."""

    rank, epoch, num_passes = 0, 0, 0

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.step = run_dir, 0
        self.control = Control(run_dir)
        self.notes: list[dict[str, Any]] = []

    def note(self, kind: str, **values: Any) -> None:
        assert kind == "checkpoint"
        self.notes.append(values)

    def continue_from(self, step: int, *, num_passes: int) -> None:
        self.step, self.num_passes = step, num_passes


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    rundir.make(made, Config(script="train.py", nproc_per_node=1))
    made.checkpoints.mkdir(exist_ok=True)
    return made


def passes(saving: Saving, loader: DataLoader[Tensor]) -> Iterator[Tensor]:
    """Iterate a loader with the calls of the hooks."""
    saving.begin_pass()
    iterator = iter(loader)
    saving.set_iterator(iterator)
    while True:
        saving.begin_fetch()
        try:
            batch = next(iterator)
        except StopIteration:
            saving.end_skipping(is_pass_over=True)
            return
        yield batch


def train(run: RunDirectory, resume_step: int | None = None) -> tuple[dict[int, Any], Rank]:
    """Return what each step saw and drew, as a script with `shuffle=True` that skips what it has trained."""
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    rank = Rank(run.path)
    saving, loader = Saving(rank, resume_step), DataLoader(Noisy(), batch_size=2, shuffle=True)
    weight = nn.Linear(1, 1)
    saved = saving.load({"weight": weight}) or {"epoch": 0, "batch": 0}
    found = {}
    for epoch in range(saved["epoch"], EPOCHS):
        for number, batch in enumerate(passes(saving, loader)):
            if epoch == saved["epoch"] and number < saved["batch"]:
                continue
            saving.end_skipping(is_pass_over=False)
            rank.step += 1
            found[rank.step] = (batch.tolist(), torch.rand(1).item(), random.random(), np.random.rand())
            with torch.no_grad():
                weight.weight += 1
            saving.save({"weight": weight, "epoch": epoch, "batch": number + 1})
        torch.rand(3), [*passes(saving, DataLoader(Noisy()))]  # an evaluation
    return found | {"weight": weight.weight.item()}, rank


def publish(run: RunDirectory, step: int) -> None:
    with Sealing() as sealing:
        files = sealing.finish(checkpoint_files.partial_path(run, step))
    about = {"strategy": "script", "world_size": 1, "reason": "button"}
    checkpoint_files.publish(run, step, about, files)


@pytest.mark.parametrize("step", [2, BATCHES, BATCHES + 1])
def test_the_steps_after_a_resume_are_those_of_an_uninterrupted_run(run: RunDirectory, step: int) -> None:
    expected, _ = train(run)
    Control(run.path).set(spool.SAVE_STEP, step)
    assert train(run)[0] == expected, "saving changes nothing"
    publish(run, step)
    resumed, _ = train(run, resume_step=step)
    assert resumed == {each: value for each, value in expected.items() if each == "weight" or each > step}


class Custom(int):
    pass


@pytest.mark.parametrize(
    "value", [Custom(1), {"a": [Custom(1)]}, np.float64(1.0), defaultdict(list), b"", lambda: None]
)
def test_values_that_only_code_could_load_are_refused_by_name(run: RunDirectory, value: Any) -> None:
    rank = Rank(run.path)
    saving = Saving(rank, None)
    rank.step = 1
    Control(run.path).set(spool.SAVE_STEP, 1)
    saving.save({"step": 1})
    assert rank.notes == [], "a script that does not load saves nothing"
    assert saving.load({}) is None
    saving.save({"good": 1, "bad": value})
    (note,) = rank.notes
    assert "watch.save got bad with an object of the type" in note["problem"]


def test_between_two_passes_the_order_is_that_of_the_next_pass(run: RunDirectory) -> None:
    """A loader with persistent workers keeps its iterator, here the last one of `iterators`."""
    rank, loader = Rank(run.path), DataLoader(Noisy(), batch_size=2, shuffle=True)
    saving, iterators = Saving(rank, None), []
    saving.load({})
    saving.begin_pass()
    iterators.append(iter(loader))
    saving.set_iterator(iterators[-1])
    assert len([*iterators[-1]]) == BATCHES
    saving.end_skipping(is_pass_over=True)
    Control(run.path).set(spool.SAVE_STEP, 1)
    rank.step = 1
    saving.save({"epoch": 1})
    own = torch.load(checkpoint_files.partial_path(run, 1) / "rank_0.pt", weights_only=True)
    assert own["at_pass"] == {}


def collected(folder: Path, num_ranks: int, **more: Any) -> tuple[RunDirectory, Control, Collector]:
    """Return a run of a script with its control and its collector."""
    run = RunDirectory(folder / "run")
    rundir.make(run, Config(script="train.py", nproc_per_node=num_ranks, **more))
    control = Control(run.path, num_ranks=num_ranks)
    return run, control, Collector(run.path, num_ranks, control)


def test_a_save_that_fails_on_one_rank_is_one_warning_and_a_script_that_ends_early_is_described(
    tmp_path: Path,
) -> None:
    run, _, collector = collected(tmp_path, 2)
    writers = [SpoolWriter(run.path, rank) for rank in range(2)]
    writers[0].add_note("replaced", what=".cuda() has no effect", line=7)
    for writer, problem in zip(writers, ("the disk is full", None), strict=True):
        writer.add_note("checkpoint", step=5, wanted=5, problem=problem, stall_s=0.0)
        collector.pump()
    collector.close()
    (warning,) = events.read(run.events, 0, ("warning",))[0]
    assert warning["message"] == "A checkpoint was not saved: rank 0: the disk is full."
    (described,) = events.read(run.events, 0, ("script",))[0]
    assert described["replaced"] == [".cuda() has no effect, line 7"] and described["num_steps"] is None


def test_stop_brings_forward_a_periodic_checkpoint_that_is_announced(tmp_path: Path) -> None:
    run, control, collector = collected(tmp_path, 1, checkpoint_every_steps=100)
    control.set(spool.SAVES, 1)
    control.set(spool.ASKS, 1)
    writer = SpoolWriter(run.path, 0)
    for step in range(1, 100):
        control.set_rank_value(0, spool.STEP, step)
        collector.pump()
        if control.get(spool.SAVE_STEP):
            break
    assert control.get(spool.SAVE_STEP) == 100
    run.append_command("stop", save=True)
    wait_until("the command", lambda: collector.pump() or control.get(spool.STOP_STEP), 30.0)
    assert step < control.get(spool.SAVE_STEP) == control.get(spool.STOP_STEP)
    collector.close()
    del writer


def test_epochs_of_a_script_that_counts_from_1_continue_after_a_resume(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, tmp_path)
    recorder.continue_from(30, num_passes=3)
    recorder.set_epoch(4)
    assert recorder.epoch == 3
    recorder.set_epoch(5)
    assert recorder.epoch == 4
