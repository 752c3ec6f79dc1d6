"""Damaged and malicious checkpoints with matching checksums are rejected with a clear message."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn

from tests.unit.trainers.checkpoint.test_checkpoint import checkpointer_of, save
from trainers.checkpoint import sharded_files
from trainers.contract import manifests
from trainers.contract.checkpoint_files import CheckpointError, Sealing
from trainers.contract.rundir import RunDirectory

STEP = 3
ODD: tuple[Any, ...] = (None, "x", -1, 1.5, [], {}, True, 10**30, float("nan"))
BARE = re.compile(r"KeyError|TypeError|NoneType|weights_only|safe_globals|allow_pickle|^'\w+'$")
# Values that may be absent or vary.
MAY_DIFFER = re.compile(
    r"\.(learning_rate|best_value|best_step|evaluated_step|binding|num_train|num_parameters|scaler|reason|value)"
    r"|\.num_threads( removed|=None|=\d+$)|\.saved_unix_s|\.state\.\d removed|\.state=\{\}"
    r"|\.(foreach|fused|capturable|differentiable|maximize|amsgrad|decoupled_weight_decay)"
    r"( removed|=True|=None)|\.(lr|eps|weight_decay|betas\[0\])=(-1|1\.5|1000000)"
    r"|\.world_size=\w+|strategy='x'|python\[0\]"
)


@pytest.fixture
def folder(run: RunDirectory) -> Path:
    save(run, STEP)
    return run.checkpoints / f"step_{STEP}"


def reseal(folder: Path) -> None:
    """Update the manifest to match the current files."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    with Sealing() as sealing:
        manifest["files"] = {n: a for n, a in sealing.finish(folder).items() if n != path.name}
    path.write_text(json.dumps(manifest))


def altered(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield copies of a value in which one key or item is removed or replaced by another type."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{name}.{key} removed", {other: value[other] for other in value if other != key}
            for odd in ODD:
                yield f"{name}.{key}={odd!r}", {**value, key: odd}
            for changed, whole in altered(inner, f"{name}.{key}"):
                yield changed, {**value, key: whole}
    elif isinstance(value, list | tuple) and value:
        yield f"{name}[0] removed", list(value[1:])
        for changed, whole in altered(value[0], f"{name}[0]"):
            yield changed, [whole, *value[1:]]
    elif isinstance(value, torch.Tensor):
        for other in (value.flatten()[:0], value.to(torch.int64), torch.zeros(3, 3, 3, 3)):
            yield f"{name} as {other.dtype} {tuple(other.shape)}", other


def load_and_step(run: RunDirectory) -> str | None:
    """Load the checkpoint and train one step; return the error message, or None."""
    loaded = checkpointer_of(run, seed=2)
    try:
        loaded.load(STEP)
    except CheckpointError as error:
        whole = "".join(traceback.format_exception(error))
        return f"torch's advice: {whole}" if "weights_only" in whole else str(error)
    loaded._strategy.network(torch.randn(4, 5)).square().sum().backward()
    loaded._optimizer.step()
    return None


@pytest.mark.parametrize("name", ["state.json", "manifest.json", "optimizer.pt", "rank_0.pt"])
@pytest.mark.slow
def test_each_key_removed_or_of_another_kind_is_named(run: RunDirectory, folder: Path, name: str) -> None:
    is_json = name.endswith(".json")
    path = folder / name
    whole = path.read_bytes()
    value = json.loads(whole) if is_json else torch.load(path, weights_only=True)
    unexplained, num_tried = [], 0
    for what, changed in [*altered(copy.deepcopy(value)), ("=whole list", []), ("=whole text", "x")]:
        if is_json:
            path.write_text(json.dumps(changed))
        else:
            torch.save(changed, path)
        if name != "manifest.json":
            reseal(folder)
        words = load_and_step(run)
        num_tried += 1
        if words is None and not MAY_DIFFER.search(what):
            unexplained.append(f"{what} was taken")
        names_file = words is not None and (
            name in words or "no complete checkpoint" in words or "it has format" in words
        )
        if words is not None and (BARE.search(words) or not (names_file or MAY_DIFFER.search(what))):
            unexplained.append(f"{what}: {words}")
    path.write_bytes(whole)
    assert num_tried > 20 and unexplained == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "rank_0.pt", "state.json"])
@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\xff" * 200, b"[1]", b"[" * 200_000, b"\x80\x02.", b"half"]
)
def test_a_file_of_another_content_is_named(
    run: RunDirectory, folder: Path, name: str, content: bytes
) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:100] if content == b"half" else content)
    reseal(folder)
    words = load_and_step(run)
    assert words is not None and name in words and not BARE.search(words)


def test_weights_that_are_not_the_models_are_named(run: RunDirectory, folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    for key, weight in weights.items():
        others: list[dict[str, torch.Tensor]] = [{k: v for k, v in weights.items() if k != key}]
        others += [{**weights, key: torch.zeros(2, 2, 2)}, {**weights, key: weight.bool()}]
        for changed in others:
            save_file(changed, path)
            reseal(folder)
            words = load_and_step(run)
            assert words is not None and repr(key) in words, words
    save_file({**weights, "one.more": torch.zeros(1)}, path)
    reseal(folder)
    assert "'one.more', which the model does not have" in str(load_and_step(run))


def test_a_pickle_that_would_run_something_is_refused_without_torchs_advice(
    run: RunDirectory, folder: Path
) -> None:
    for name in ("optimizer.pt", "rank_0.pt"):
        kept = (folder / name).read_bytes()
        torch.save({"state": nn.Linear(2, 2)}, folder / name)
        reseal(folder)
        words = str(load_and_step(run))
        assert f"{name} contains torch.nn.modules.linear.Linear, which is not data" in words
        (folder / name).write_bytes(kept)


def listed_as(folder: Path, name: str, size_bytes: int) -> None:
    """Add one file to the manifest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"size_bytes": size_bytes, "sha256": "0" * 64}
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "name",
    ["/dev/zero", "/etc/passwd", "../../config.json", "", "..", "x" * 500, "manifest.json", "a\\b", "~"],
)
def test_a_manifest_names_nothing_outside_of_its_folder(run: RunDirectory, folder: Path, name: str) -> None:
    listed_as(folder, name, 0)
    assert "which is not a file of a checkpoint" in str(load_and_step(run))


@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo, Path.mkdir], ids=["link", "pipe", "folder"]
)
@pytest.mark.parametrize("size_bytes", [0, 4096, 10**12])
def test_only_plain_files_are_opened(
    run: RunDirectory, folder: Path, make: Callable[[Path], None], size_bytes: int
) -> None:
    make(folder / "rank_7.pt")
    listed_as(folder, "rank_7.pt", size_bytes)
    words = str(load_and_step(run))
    assert re.search(r"rank_7.pt (is not a regular file|cannot be read|differs from the saved file)", words)


def test_a_folder_of_shards_that_is_a_link_is_not_followed(
    run: RunDirectory, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_bytes(b"")
    (folder / "shards").symlink_to(tmp_path / "elsewhere")
    listed_as(folder, "shards/a", 0)
    assert "shards is a link, and links are not followed" in str(load_and_step(run))


def test_a_file_that_is_larger_than_was_said_is_not_read(
    run: RunDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (folder / "rank_0.pt").open("r+b") as file:
        file.truncate(10**13)  # a sparse file; computing its checksum would take hours
    summed = []
    real = manifests._sha256_of
    monkeypatch.setattr(manifests, "_sha256_of", lambda file, size: summed.append(size) or real(file, size))
    for sum_bytes in (0.0, math.inf):
        words = [manifests.find_fault(item, sum_bytes=sum_bytes) for item in run.list_checkpoints()]
        assert words == ["rank_0.pt differs from the saved file (damaged or altered)"]
    assert summed and max(summed) < 10**6


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "manifest.json names no files"),
        ({"a": {"size_bytes": 0, "sha256": "0" * 64}}, "does not name state.json"),
    ],
)
def test_a_manifest_that_names_too_little_does_not_pass(
    run: RunDirectory, folder: Path, files: dict[str, Any], words: str
) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": files}))
    assert words in str(load_and_step(run))


@pytest.mark.parametrize("reason", [{}, None])
def test_a_reason_that_is_none_does_not_break_the_next_save(
    run: RunDirectory, folder: Path, reason: object
) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"reason": reason}))
    maker = checkpointer_of(run, keep_last=1)
    for step in (STEP, STEP + 1):
        maker.save(type(maker.load(STEP))(step=step), "schedule") if step == STEP else save(run, step)
    maker.wait()
    assert run.list_checkpoints()[-1].step == STEP + 1


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Return a folder with a sharded checkpoint."""
    folder = tmp_path / "shards"
    dcp.save({"model": {"weight": torch.arange(6.0)}}, checkpoint_id=folder, no_dist=True)
    return folder


def read_shards(folder: Path) -> str:
    """Read the shards and return the error message."""
    with pytest.raises(ValueError, match=r".") as caught:
        sharded_files.read({"model": {"weight": torch.zeros(6)}}, folder)
    assert not BARE.search("".join(traceback.format_exception(caught.value))), "torch's advice"
    return str(caught.value)


def altered_description(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize("name", ["/dev/zero", "../../x", "a/b", "", None, ".metadata"])
def test_pieces_lie_in_their_own_folder_only(shards: Path, name: object) -> None:
    """torch would open any path that the metadata names."""

    def change(metadata: Any) -> None:
        for piece in metadata.storage_data.values():
            piece.relative_path = name

    altered_description(shards, change)
    assert "which is not a file of a checkpoint" in read_shards(shards)


@pytest.mark.parametrize("name", ["storage_data", "state_dict_metadata", "planner_data"])
@pytest.mark.parametrize("value", ["removed", None, [], {"model.weight": 3}])
def test_a_description_that_lacks_something_is_told_in_words(shards: Path, name: str, value: object) -> None:
    def change(metadata: Any) -> None:
        if value == "removed":
            del metadata.__dict__[name]
        else:
            setattr(metadata, name, value)

    altered_description(shards, change)
    if name == "planner_data":  # not needed for loading
        sharded_files.read({"model": {"weight": torch.zeros(6)}}, shards)
    else:
        assert len(read_shards(shards)) > 20


@pytest.mark.parametrize("content", [b"", b"\x80\x02.", b"PK\x03\x04", b"\xff" * 99])
@pytest.mark.parametrize("what", [".metadata", "__0_0.distcp"])
def test_pieces_of_another_content_are_told_in_words(shards: Path, what: str, content: bytes) -> None:
    (shards / what).write_bytes(content)
    assert len(read_shards(shards)) > 20
