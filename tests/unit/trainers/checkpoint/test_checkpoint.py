"""Tests of checkpoints without a process group: exact values, atomic saves."""

from __future__ import annotations

import json
import pickle
import random
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystem

from tests.unit.trained_runs import WORLD, Plain
from trainers.checkpoint import loaded_state, sharded_files
from trainers.checkpoint.checkpoint_writer import Outcome, Saved
from trainers.checkpoint.save_and_restore import Checkpointer
from trainers.checkpoint.sharded_files import DataOnlyReader
from trainers.checkpoint.snapshot import Progress
from trainers.contract import checkpoint_files, manifests, rundir
from trainers.contract.checkpoint_files import CheckpointError
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory

BINDING = {"num_train": 100, "num_parameters": 80}
FILES = ["model.safetensors", "optimizer.pt", "rank_0.pt", "state.json"]


@pytest.fixture
def short_files() -> Iterator[Callable[[int], None]]:
    """Return a function that limits the file size of this process; larger writes then fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def network_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small network and its AdamW optimizer after two training steps."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, fused=True)
    for _ in range(2):
        network(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return network, optimizer


def checkpointer_of(run: RunDirectory, seed: int = 1, **values: Any) -> Checkpointer:
    """Return the checkpointer of a small network; it appends its outcomes to `announced`."""
    network, optimizer = network_and_optimizer(seed)
    if "network" in values:
        network = values.pop("network")
        optimizer = torch.optim.AdamW(network.parameters())
    strategy = Plain(Config(nproc_per_node=1), WORLD)
    strategy.wrap(network)
    announced: list[Outcome] = []
    arguments = {
        "scaler": None,
        "binding": BINDING,
        "keep_last": None,
        "keep_best": True,
        "announce": announced.append,
    }
    made = Checkpointer(run, WORLD, strategy, optimizer, **(arguments | values))
    made.announced = announced  # type: ignore[attr-defined]
    return made


def save(run: RunDirectory, step: int = 3, seed: int = 1) -> None:
    maker = checkpointer_of(run, seed)
    maker.save(Progress(step=step, epoch=1, samples_in_epoch=2), "schedule")
    outcome = maker.wait()
    if isinstance(outcome, CheckpointError):
        raise outcome


def assert_same(left: Any, right: Any) -> None:
    """Assert that two states are equal, bit for bit."""
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def test_saved_and_loaded_state_is_equal_to_the_last_bit(run: RunDirectory) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    scaler.scale(torch.ones(1))
    maker = checkpointer_of(run, scaler=scaler)
    maker._optimizer.param_groups[0]["lr"] = 0.007
    random.seed(5)
    progress = Progress(
        step=9,
        epoch=2,
        samples_in_epoch=64,
        learning_rate=0.25,
        best_value=0.5,
        best_step=4,
        evaluated_step=9,
    )
    stall_s = maker.save(progress, "button")
    drawn = torch.rand(3), random.random()
    outcome = maker.wait()
    assert isinstance(outcome, Saved) and maker.announced == [outcome]  # type: ignore[attr-defined]
    assert outcome.path == run.checkpoints / "step_9" and maker.is_saved(9) and not maker.is_saved(8)
    files = [path for path in outcome.path.iterdir() if path.name != "manifest.json"]
    assert outcome.size_bytes == sum(path.stat().st_size for path in files)
    assert 0 < outcome.stall_s == stall_s <= outcome.duration_s

    other_scaler = torch.amp.GradScaler("cpu")
    other_scaler.scale(torch.ones(1))
    other = checkpointer_of(run, seed=2, scaler=other_scaler)
    assert other.load(9) == progress
    assert_same(other._strategy.network.state_dict(), maker._strategy.network.state_dict())
    assert_same(other._optimizer.state_dict(), maker._optimizer.state_dict())
    assert other_scaler.state_dict() == scaler.state_dict()
    assert_same((torch.rand(3), random.random()), drawn)


def test_training_goes_on_while_what_was_is_written(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint contains the state at the time of the call, even if training changes the weights later."""
    maker = checkpointer_of(run)
    weights = maker._strategy.network.state_dict()
    before = {name: value.clone() for name, value in weights.items()}
    may_write = threading.Event()
    write = loaded_state.write_tensors

    def write_when_allowed(path: Path, state: object) -> None:
        assert may_write.wait(60)
        write(path, state)

    monkeypatch.setattr(loaded_state, "write_tensors", write_when_allowed)
    maker.save(Progress(step=1), "schedule")
    assert not maker.is_saved(1), "it is still being written"
    with torch.no_grad():
        for value in weights.values():
            value.zero_()
    may_write.set()
    maker.wait()
    other = checkpointer_of(run, seed=2)
    other.load(1)
    assert_same(other._strategy.network.state_dict(), before)


class Awkward(nn.Module):
    """Weights of every kind that a file of plain arrays could store incorrectly."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.scores = nn.Linear(4, 6, bias=False)
        self.scores.weight = self.words.weight
        self.filters = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.short_numbers = nn.Parameter(torch.randn(7, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mask", torch.ones(4, 6, dtype=torch.bool).T)
        self.register_buffer("nothing", torch.empty(0))


def test_tied_half_and_odd_weights_come_back_as_they_were(run: RunDirectory) -> None:
    """Tied weights are written once, as in Hugging Face's files."""
    torch.manual_seed(1)
    network = Awkward()
    maker = checkpointer_of(run, network=network)
    maker.save(Progress(step=1), "schedule")
    outcome = maker.wait()
    assert isinstance(outcome, Saved)
    names = load_file(outcome.path / "model.safetensors").keys()
    assert ("words.weight" in names) != ("scores.weight" in names)
    torch.manual_seed(2)
    other = checkpointer_of(run, network=Awkward())
    other.load(1)
    found = other._strategy.network
    assert_same(dict(found.state_dict()), dict(network.state_dict()))
    assert found.scores.weight is found.words.weight
    assert found.filters.weight.is_contiguous(memory_format=torch.channels_last)


def test_without_safetensors_weights_go_to_a_file_of_torch_and_are_not_read_from_safetensors(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loaded_state, "is_safetensors_installed", lambda: False)
    maker = checkpointer_of(run)
    maker.save(Progress(step=3), "schedule")
    outcome = maker.wait()
    assert isinstance(outcome, Saved)
    assert "safetensors is not installed" in caplog.text
    assert (outcome.path / "model.pt").exists() and not (outcome.path / "model.safetensors").exists()
    monkeypatch.undo()
    other = checkpointer_of(run, seed=2)
    other.load(3)
    assert_same(other._strategy.network.state_dict(), maker._strategy.network.state_dict())
    save(run, step=4)
    monkeypatch.setattr(loaded_state, "is_safetensors_installed", lambda: False)
    with pytest.raises(CheckpointError, match=r"weights of step_4 are in .* safetensors is not installed"):
        checkpointer_of(run).load(4)


def test_checkpoint_of_another_model_strategy_or_format_is_refused_in_words(run: RunDirectory) -> None:
    save(run)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        checkpointer_of(run, network=nn.Linear(2, 2)).load(3)
    path = run.checkpoints / "step_3" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"strategy": "zero3"}))
    with pytest.raises(CheckpointError, match="saved with strategy = zero3, but the value is plain now"):
        checkpointer_of(run).load(3)
    path.write_text(json.dumps(manifest | {"format_version": 1}))
    with pytest.raises(CheckpointError, match="it has format 1, and this version reads 2"):
        checkpoint_files.verify(run, 3)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["one bit", "cut", "longer", "gone"])
def test_damaged_file_is_refused_by_name(run: RunDirectory, name: str, damage: str) -> None:
    save(run)
    checkpoint_files.verify(run, 3)
    path = run.checkpoints / "step_3" / name
    content = bytearray(path.read_bytes())
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    elif damage == "cut":
        del content[-1]
    elif damage == "longer":
        content += b"\0"
    path.write_bytes(content)
    if damage == "gone":
        path.unlink()
    other = checkpointer_of(run, seed=2)
    network = other._strategy.network
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=f"step_3: {name}"):
        other.load(3)
    assert_same(network.state_dict(), before)
    save(run, step=2)
    newest = manifests.latest_intact(run)
    assert newest is not None and newest.step == 2
    with pytest.raises(CheckpointError, match=r"latest complete one is step 2"):
        checkpoint_files.verify(run, 3)


def test_checkpoint_that_was_asked_for_stays_when_its_step_is_reached_again(run: RunDirectory) -> None:
    first = checkpointer_of(run, keep_last=1)
    first.save(Progress(step=1), "button")
    first.wait()
    again = checkpointer_of(run, keep_last=1)  # restarted from the beginning
    for step in (1, 2, 3):
        again.save(Progress(step=step), "schedule")
    again.wait()
    assert [item.step for item in run.list_checkpoints()] == [1, 3]


def test_leftovers_of_a_killed_save_are_removed_and_what_it_set_aside_comes_back(run: RunDirectory) -> None:
    save(run)
    shutil.copytree(run.checkpoints / "step_3", run.checkpoints / ".step_4.partial")
    assert [item.step for item in run.list_checkpoints()] == [3]
    checkpoint_files.remove_leftovers(run)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_3"]
    (run.checkpoints / "step_3").rename(run.checkpoints / ".step_3.replaced")  # killed between two renames
    checkpoint_files.remove_leftovers(run)
    checkpoint_files.verify(run, 3)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_3"]


@pytest.mark.parametrize("num_bytes", [500, 6000])
def test_save_that_fails_names_rank_and_reason_and_leaves_nothing(
    run: RunDirectory, short_files: Callable[[int], None], num_bytes: int
) -> None:
    """500 bytes are too few for the random state, 6000 for the safetensors weights."""
    network = nn.Linear(30, 100)
    save(run, step=2)
    maker = checkpointer_of(run, network=network)
    if num_bytes == 6000:
        maker._copy = _without_random_state(maker._copy)  # type: ignore[method-assign]
    short_files(num_bytes)
    maker.save(Progress(step=3), "schedule")
    outcome = maker.wait()
    assert isinstance(outcome, CheckpointError) and maker.announced == [outcome]  # type: ignore[attr-defined]
    assert "rank 0 could not write the checkpoint: " in str(outcome) and "file size limit" in str(outcome)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_2"]
    checkpoint_files.verify(run, 2)
    short_files(10**9)
    maker.save(Progress(step=3), "schedule")
    assert isinstance(maker.wait(), Saved) and maker.is_saved(3), "the same step can be tried again"


def _without_random_state(copy: Callable[..., Any]) -> Callable[..., Any]:
    def copy_less(*arguments: Any) -> Any:
        snapshot = copy(*arguments)
        snapshot.random_state = {}
        return snapshot

    return copy_less


def test_old_checkpoints_that_cannot_be_deleted_do_not_fail_the_new_one(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint_files, "retire", refuse)
    maker = checkpointer_of(run, keep_last=1)
    maker.save(Progress(step=3), "schedule")
    outcome = maker.wait()
    assert isinstance(outcome, Saved) and outcome.removed == ()


class Evil:
    """Creates a file on unpickling."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


class NoData:
    """Creates a torch file system on unpickling: harmless, but not data."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (FileSystem, ())


def test_sharded_checkpoints_and_their_description_may_hold_data_only(tmp_path: Path) -> None:
    """torch's reader would unpickle both, so a downloaded file could run arbitrary code."""
    for content in (Evil(tmp_path / "evil_was_here"), NoData()):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(content))
        with pytest.raises(CheckpointError, match="which is not data"):
            DataOnlyReader(tmp_path).read_metadata()
    folder = tmp_path / "shards"
    dcp.save({"model": {"weight": Evil(tmp_path / "evil_was_here")}}, checkpoint_id=folder, no_dist=True)
    with pytest.raises(ValueError, match=r"BytesStorageMetadata, which is not data|describes no tensors"):
        sharded_files.read({"model": {"weight": torch.zeros(2)}}, folder)
    assert not (tmp_path / "evil_was_here").exists()


def test_a_checkpoint_leaves_the_reserve_of_the_disk_and_keeps_to_the_share_of_its_run(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, step=2)
    (before,) = run.list_checkpoints()
    free, reserve = 10_000_000, 9_999_000
    monkeypatch.setattr(rundir, "disk_space", lambda _: (free, reserve))

    def require(reason: str = "schedule", keep_last: int | None = None, most: int | None = None) -> None:
        checkpoint_files.require_space(
            run, 3, before.size_bytes, reason, keep_last=keep_last, best_step=None, max_bytes=most
        )

    with pytest.raises(CheckpointError, match=r"has 10\.0 MB free.* and 10\.0 MB are reserved"):
        require()
    require("end")  # the last save may use half of the reserve
    reserve = 0
    require(most=2 * before.size_bytes)
    with pytest.raises(CheckpointError, match=r"its share of the disk is .*keep_last_checkpoints"):
        require(most=2 * before.size_bytes - 1)
    require(keep_last=1, most=before.size_bytes)  # the old checkpoint is removed
