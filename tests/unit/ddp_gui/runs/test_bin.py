"""Tests of the bin: deleted runs can be restored, and nothing else is touched."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from ddp_gui.runs import bin as run_bin
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory, Status


def make_run(runs_dir: Path, state: str = "finished") -> RunDirectory:
    run = rundir.create(runs_dir, config.parse({"dataset": "digits", "model": "mlp"}))
    run.write_status(Status(state=state))  # type: ignore[arg-type]
    (run.checkpoints / "weights").write_bytes(b"w" * 1000)
    return run


def test_a_run_that_goes_on_is_refused_and_nothing_is_moved(tmp_path: Path) -> None:
    ended, live = make_run(tmp_path), make_run(tmp_path, "running")
    owner = os.open(live.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(owner, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match=f"run {live.run_id} is running: stop it first"):
        run_bin.delete(tmp_path, [ended.run_id, live.run_id])
    os.close(owner)
    assert ended.config.is_file() and live.config.is_file()
    assert not ended.is_locked(), "what was held to delete it is let go"


def test_ids_that_were_deleted_before_are_numbered(tmp_path: Path) -> None:
    first = make_run(tmp_path).run_id
    for _ in range(3):
        run_bin.delete(tmp_path, [first])
        assert make_run(tmp_path).run_id == first, "the number is free again"
    assert sorted(item.bin_id for item in run_bin.content(tmp_path)) == [first, f"{first}~2", f"{first}~3"]
    assert run_bin.restore(tmp_path, [f"{first}~2"]) == [(f"{first}~2", f"{first}.2")]
    assert RunDirectory(tmp_path / first).config.is_file()
    assert RunDirectory(tmp_path / f"{first}.2").config.is_file()


def test_a_link_to_elsewhere_is_removed_and_not_followed(tmp_path: Path) -> None:
    elsewhere = make_run(tmp_path / "elsewhere")
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    (runs_dir / "linked-1").symlink_to(elsewhere.path)
    run_bin.delete(runs_dir, ["linked-1"])
    run_bin.empty(runs_dir)
    assert elsewhere.config.is_file()
    assert not os.path.lexists(runs_dir / run_bin.FOLDER / "linked-1")


@pytest.mark.parametrize("bin_id", ["../digits-mlp-1", "/etc", "", ".", "..", "a/b", "no-such-1", "a~b"])
def test_no_id_leads_out_of_the_bin(tmp_path: Path, bin_id: str) -> None:
    run = make_run(tmp_path)
    other = make_run(tmp_path)
    run_bin.delete(tmp_path, [other.run_id])
    for act in (run_bin.restore, run_bin.empty):
        with pytest.raises(ValueError, match="run_id is"):
            act(tmp_path, [bin_id])
    assert run.config.is_file()
    assert len(run_bin.content(tmp_path)) == 1
