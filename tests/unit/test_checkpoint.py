"""Checkpoints by themselves, in a process group of one: bit for bit, whole or not there."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainers import checkpoint, checkpoint_files
from trainers.checkpoint import Checkpointer, CheckpointError, Outcome, Progress, Saved
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.distributed import World
from trainers.parallel import Strategy

WORLD = World(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"))
BINDING = {"num_train": 100, "num_parameters": 80}
FILES = ["model.safetensors", "optimizer.pt", "rank_0.pt", "state.json"]


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Join a gloo group of one, by way of a file: no port is needed."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small network and its AdamW, two steps into training."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, fused=True)
    for _ in range(2):
        network(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return network, optimizer


class Plain(Strategy):
    """Every rank has the whole model."""

    name = "plain"


def checkpointer_of(run: RunDirectory, seed: int = 1, **values: Any) -> Checkpointer:
    """Return the checkpointer of a small network; what it announces is in `announced`."""
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
    """Fail unless two states are equal to the last bit."""
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
    """What is saved is the state at the call, whatever training does to the weights meanwhile."""
    maker = checkpointer_of(run)
    weights = maker._strategy.network.state_dict()
    before = {name: value.clone() for name, value in weights.items()}
    may_write = threading.Event()
    write = checkpoint_files.write_synced

    def write_when_allowed(path: Path, state: object) -> None:
        assert may_write.wait(10)
        write(path, state)

    monkeypatch.setattr(checkpoint_files, "write_synced", write_when_allowed)
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


def test_step_that_is_saved_is_not_saved_again_but_kept_when_asked_for(run: RunDirectory) -> None:
    maker = checkpointer_of(run, keep_last=1)
    maker.save(Progress(step=1), "schedule")
    maker.wait()
    assert maker.save(Progress(step=1), "button") == 0.0
    for step in (2, 3):
        maker.save(Progress(step=step), "schedule")
    maker.wait()
    assert [item.step for item in run.list_checkpoints()] == [1, 3]


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [
        (2, True, [2, 3, 6, 7]),
        (2, False, [3, 6, 7]),
        (1, True, [2, 3, 7]),
        (None, True, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_newest_best_and_asked_for_stay(
    run: RunDirectory, keep_last: int | None, keep_best: bool, kept: list[int]
) -> None:
    maker = checkpointer_of(run, keep_last=keep_last, keep_best=keep_best)
    for step in range(1, 8):
        best = 2 if step >= 2 else None
        maker.save(Progress(step=step, best_step=best), "button" if step == 3 else "schedule")
    maker.wait()
    assert [item.step for item in run.list_checkpoints()] == kept
    removed = [step for outcome in maker.announced for step in outcome.removed]  # type: ignore[attr-defined]
    assert sorted(removed + kept) == list(range(1, 8))
    assert not list(run.checkpoints.glob(".*")), "nothing half deleted is left"


def test_manifest_names_every_file_with_size_and_digest(run: RunDirectory) -> None:
    save(run)
    manifest = json.loads((run.checkpoints / "step_3" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == FILES
    about = (manifest["step"], manifest["world_size"], manifest["strategy"], manifest["reason"])
    assert about == (3, 1, "plain", "schedule")
    for name, file in manifest["files"].items():
        assert file["size_bytes"] == (run.checkpoints / "step_3" / name).stat().st_size
        assert len(file["sha256"]) == 64


def test_weights_are_safetensors_that_any_program_reads(run: RunDirectory) -> None:
    from safetensors.torch import load_file

    save(run)
    weights = load_file(run.checkpoints / "step_3" / "model.safetensors")
    assert_same(weights, dict(network_and_optimizer(seed=1)[0].state_dict()))


def test_newest_whole_checkpoint_is_offered_instead_of_a_damaged_one(run: RunDirectory) -> None:
    for step in (3, 5, 8):
        save(run, step=step)
    (run.checkpoints / "step_8" / "optimizer.pt").write_bytes(b"no")
    assert checkpoint.newest_whole(run) == 5
    with pytest.raises(
        CheckpointError, match=r"optimizer.pt is not what was saved .*newest whole one is step 5"
    ):
        checkpoint.verify(run, 8)


def test_checkpoint_of_an_older_format_or_another_strategy_is_refused_in_words(run: RunDirectory) -> None:
    save(run)
    path = run.checkpoints / "step_3" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"strategy": "zero3"}))
    with pytest.raises(CheckpointError, match="saved with strategy = zero3, but now it is plain"):
        checkpointer_of(run).load(3)
    path.write_text(json.dumps(manifest | {"format_version": 1}))
    with pytest.raises(CheckpointError, match="it has format 1, and this version reads 2"):
        checkpoint.verify(run, 3)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["one bit", "cut", "longer", "gone"])
def test_damaged_file_is_refused_by_name(run: RunDirectory, name: str, damage: str) -> None:
    save(run)
    checkpoint.verify(run, 3)
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


def test_checkpoint_without_its_manifest_is_none(run: RunDirectory) -> None:
    save(run, step=3)
    save(run, step=5)
    (run.checkpoints / "step_5" / "manifest.json").unlink()
    assert [item.step for item in run.list_checkpoints()] == [3]
    with pytest.raises(CheckpointError, match="no whole checkpoint of step 5; there are: 3"):
        checkpoint.verify(run, 5)


def test_checkpoint_of_another_model_is_refused_in_words(run: RunDirectory) -> None:
    save(run)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        checkpointer_of(run, network=nn.Linear(2, 2)).load(3)


def test_checkpoint_can_run_no_code(run: RunDirectory) -> None:
    """A file that unpickles into a call is refused by torch, even with a manifest that fits."""
    save(run)
    path = run.checkpoints / "step_3" / "optimizer.pt"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (run.path / "evil_was_here",))

    torch.save({"state": Evil()}, path)
    manifest_path = path.with_name("manifest.json")
    manifest = json.loads(manifest_path.read_text())
    manifest["files"] = checkpoint_files.describe_files(path.parent)
    del manifest["files"]["manifest.json"]
    manifest_path.write_text(json.dumps(manifest))
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        checkpointer_of(run, seed=2).load(3)
    assert not (run.path / "evil_was_here").exists()


def test_same_step_reached_again_replaces_the_old_checkpoint(run: RunDirectory) -> None:
    save(run, seed=1)
    first = (run.checkpoints / "step_3" / "model.safetensors").read_bytes()
    save(run, seed=2)
    assert (run.checkpoints / "step_3" / "model.safetensors").read_bytes() != first
    checkpoint.verify(run, 3)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_3"]


def test_leftovers_of_a_killed_save_are_not_listed_and_are_removed(run: RunDirectory) -> None:
    save(run)
    shutil.copytree(run.checkpoints / "step_3", run.checkpoints / ".step_4.partial")
    assert [item.step for item in run.list_checkpoints()] == [3]
    checkpoint.remove_leftovers(run)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_3"]


def test_checkpoint_set_aside_by_a_killed_save_is_brought_back(run: RunDirectory) -> None:
    """Killed between the two renames of a replacement, the old checkpoint is the only one there is."""
    save(run)
    (run.checkpoints / "step_3").rename(run.checkpoints / ".step_3.replaced")
    checkpoint.remove_leftovers(run)
    checkpoint.verify(run, 3)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_3"]


def test_save_that_fails_names_rank_and_reason_and_leaves_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, step=2)

    def full(_state: object, _file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"rank 0 could not write the checkpoint: .*No space left"):
        save(run, step=3)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_2"]
    checkpoint.verify(run, 2)


def test_checkpoint_of_other_data_is_refused_in_words(run: RunDirectory) -> None:
    """The place in the epoch would mean other samples, and what was validated may have been trained on."""
    save(run)
    with pytest.raises(CheckpointError, match="saved with num_train = 100, but now it is 900"):
        checkpointer_of(run, binding={**BINDING, "num_train": 900}).load(3)


def test_description_of_sharded_checkpoints_may_hold_data_only(tmp_path: Path) -> None:
    """torch's reader would unpickle it, so a file somebody gave could run anything."""
    from trainers.sharded_files import DataOnlyReader

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "evil_was_here",))

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match="which is no data"):
        DataOnlyReader(tmp_path).read_metadata()
    assert not (tmp_path / "evil_was_here").exists()
