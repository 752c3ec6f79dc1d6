"""Checkpoints by themselves, in a process group of one: bit for bit, whole or not there."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainers import checkpoint
from trainers.checkpoint import CheckpointError, Progress
from trainers.contract.rundir import RunDirectory
from trainers.distributed import World

WORLD = World(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"))
BINDING = {"num_train": 100, "batch_size": 8}


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


def save(run: RunDirectory, step: int = 3, seed: int = 1) -> None:
    network, optimizer = network_and_optimizer(seed)
    checkpoint.save(run, Progress(step=step, epoch=1, batch_in_epoch=2), network, optimizer, WORLD, BINDING)


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
    network, optimizer = network_and_optimizer(seed=1)
    optimizer.param_groups[0]["lr"] = 0.007
    random.seed(5)
    saved = checkpoint.save(
        run, Progress(step=9, epoch=2, batch_in_epoch=4), network, optimizer, WORLD, BINDING
    )
    drawn = torch.rand(3), random.random()
    assert saved.path == run.checkpoints / "step_9"
    assert saved.size_bytes == sum(f.stat().st_size for f in saved.path.glob("*.pt"))

    other, other_optimizer = network_and_optimizer(seed=2)
    progress = checkpoint.load(run, 9, other, other_optimizer, WORLD, BINDING)
    assert vars(progress) == {"step": 9, "epoch": 2, "batch_in_epoch": 4}
    assert_same(other.state_dict(), network.state_dict())
    assert_same(other_optimizer.state_dict(), optimizer.state_dict())
    assert_same((torch.rand(3), random.random()), drawn)


def test_manifest_names_every_file_with_size_and_digest(run: RunDirectory) -> None:
    save(run)
    manifest = json.loads((run.checkpoints / "step_3" / "manifest.json").read_text())
    assert sorted(manifest["files"]) == ["rank_0.pt", "shared.pt"]
    assert (manifest["step"], manifest["world_size"]) == (3, 1)
    for name, about in manifest["files"].items():
        assert about["size_bytes"] == (run.checkpoints / "step_3" / name).stat().st_size
        assert len(about["sha256"]) == 64


@pytest.mark.parametrize("name", ["shared.pt", "rank_0.pt"])
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
    network, optimizer = network_and_optimizer(seed=2)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=f"step_3: {name}"):
        checkpoint.load(run, 3, network, optimizer, WORLD, BINDING)
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
    other = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        checkpoint.load(run, 3, other, torch.optim.AdamW(other.parameters()), WORLD, BINDING)


def test_checkpoint_can_run_no_code(run: RunDirectory) -> None:
    """A file that unpickles into a call is refused by torch, even with a manifest that fits."""
    save(run)
    path = run.checkpoints / "step_3" / "shared.pt"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (run.path / "evil_was_here",))

    torch.save({"model": Evil(), "binding": BINDING}, path)
    manifest_path = path.with_name("manifest.json")
    manifest = json.loads(manifest_path.read_text())
    digest, size = checkpoint._digest(path)
    manifest["files"]["shared.pt"] = {"size_bytes": size, "sha256": digest}
    manifest_path.write_text(json.dumps(manifest))
    network, optimizer = network_and_optimizer(seed=2)
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        checkpoint.load(run, 3, network, optimizer, WORLD, BINDING)
    assert not (run.path / "evil_was_here").exists()


def test_same_step_reached_again_replaces_the_old_checkpoint(run: RunDirectory) -> None:
    save(run, seed=1)
    first = (run.checkpoints / "step_3" / "shared.pt").read_bytes()
    save(run, seed=2)
    assert (run.checkpoints / "step_3" / "shared.pt").read_bytes() != first
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
    network, optimizer = network_and_optimizer(seed=1)
    with pytest.raises(CheckpointError, match="saved with num_train = 100, but now it is 900"):
        checkpoint.load(run, 3, network, optimizer, WORLD, {**BINDING, "num_train": 900})
