"""Tests of the list of runs and of the view of one run, both read only from directories."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from ddp_gui.launch import launcher
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import bin as run_bin
from ddp_gui.runs.runs import RunStore
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.ddp_gui.events.test_series import evaluation, state, step
from trainers.contract import config, rundir
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness


def make_run(runs_dir: Path, *, until: int = 10, ended: str = "stopped") -> RunDirectory:
    run = rundir.create(runs_dir, config.parse({"num_epochs": 1}))
    leave_events(run, until=until, ended=ended)
    return run


def leave_events(run: RunDirectory, *, until: int = 10, ended: str = "stopped") -> None:
    """Write the events of a run that has ended."""
    file = EventFile(run.events)
    happened = [state("starting", 0, 100.0), *(step(n, n) for n in range(1, until + 1))]
    happened += [evaluation(until, 0, accuracy=0.75), state(ended, 0, 200.0)]
    file.append(
        [
            (
                e["time_unix_s"],
                e["kind"],
                {k: v for k, v in e.items() if k not in ("seq", "time_unix_s", "kind")},
            )
            for e in happened
        ]
    )
    file.close()
    run.write_status(Status(state=ended, exit_code=0))


def store_of(runs_dir: Path, catalogue: Catalogue) -> RunStore:
    """Return a store whose catalogue needs no process."""
    return RunStore(runs_dir, SimpleNamespace(get=lambda: catalogue))


@pytest.mark.parametrize("name", ["run [2] (copy)", "运行　1", "50% #1 & more?", "<b>l'été<b>", "x" * 240])
def test_a_copied_run_opens_under_almost_any_folder_name(tmp_path: Path, catalogue, name: str) -> None:
    run = make_run(tmp_path)
    run.path.rename(tmp_path / name)
    store = store_of(tmp_path, catalogue)
    (row,) = store.rows()
    assert (row["run_id"], row["state"], row["error"]) == (name, "stopped", None)
    assert store.view(name).run.path == tmp_path / name
    ((_, bin_id),) = run_bin.delete(tmp_path, [name])
    assert run_bin.restore(tmp_path, [bin_id]) == [(bin_id, name)]


@pytest.mark.parametrize("name", [b"a,b", b"-rf", b"caf\xe9", b"zero\xe2\x80\x8bwidth", b" space"])
def test_a_folder_that_is_no_run_id_says_so(tmp_path: Path, catalogue, name: bytes) -> None:
    run = make_run(tmp_path)
    run.path.rename(tmp_path / os.fsdecode(name))
    (row,) = store_of(tmp_path, catalogue).rows()
    assert row["state"] == "lost" and "Rename the folder" in row["error"]
    assert orjson.dumps(row)


def test_a_chosen_checkpoint_must_be_there(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ValueError, match="is stopped: only a live run"):
        launcher.stop(run, liveness.read_status(run), save=True)
    with pytest.raises(ValueError, match="has no checkpoint to resume from"):
        launcher.pick_checkpoint(run, None)
    for number, saved in ((20, 1.0), (10, 2.0)):
        folder = run.checkpoints / f"step_{number}"
        folder.mkdir()
        manifest = {"saved_unix_s": saved, "files": {}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert launcher.pick_checkpoint(run, None).step == 10, "newest is what was saved last"
    assert launcher.pick_checkpoint(run, 20).step == 20
    leave_checkpoint(run, 5)
    assert launcher.pick_checkpoint(run, None).step == 5, "of the others no file is there"
    with pytest.raises(ValueError, match="checkpoint_step is 15; allowed: one of 5, 10, 20"):
        launcher.pick_checkpoint(run, 15)


def test_a_run_made_anew_under_an_old_id_does_not_show_the_old_numbers(tmp_path: Path, catalogue) -> None:
    run = make_run(tmp_path, until=50)
    store = store_of(tmp_path, catalogue)
    assert store.rows()[0]["step"] == 50
    run.events.unlink()
    file = EventFile(run.events)
    file.append([(1.0, "state", {"state": "starting", "reason": ""})])
    file.close()
    assert store.rows()[0]["step"] == 0


def make_ended(runs_dir: Path, state: str = "finished") -> RunDirectory:
    run = rundir.create(runs_dir, config.parse({"dataset": "digits", "model": "mlp"}))
    run.write_status(Status(state=state))
    (run.checkpoints / "weights").write_bytes(b"w" * 1000)
    return run


def test_a_run_that_goes_on_is_refused_and_nothing_is_moved(tmp_path: Path) -> None:
    ended, live = make_ended(tmp_path), make_ended(tmp_path, "running")
    owner = os.open(live.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(owner, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match=f"run {live.run_id} is running: stop it first"):
        run_bin.delete(tmp_path, [ended.run_id, live.run_id])
    os.close(owner)
    assert ended.config.is_file() and live.config.is_file()
    assert not ended.is_locked(), "what was held to delete it is let go"


def test_ids_that_were_deleted_before_are_numbered(tmp_path: Path) -> None:
    first = make_ended(tmp_path).run_id
    for _ in range(3):
        run_bin.delete(tmp_path, [first])
        assert make_ended(tmp_path).run_id == first, "the number is free again"
    assert sorted(item.bin_id for item in run_bin.content(tmp_path)) == [first, f"{first}~2", f"{first}~3"]
    assert run_bin.restore(tmp_path, [f"{first}~2"]) == [(f"{first}~2", f"{first}.2")]
    assert RunDirectory(tmp_path / first).config.is_file()
    assert RunDirectory(tmp_path / f"{first}.2").config.is_file()


def test_a_link_to_elsewhere_is_removed_and_not_followed(tmp_path: Path) -> None:
    elsewhere = make_ended(tmp_path / "elsewhere")
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    (runs_dir / "linked-1").symlink_to(elsewhere.path)
    run_bin.delete(runs_dir, ["linked-1"])
    run_bin.empty(runs_dir)
    assert elsewhere.config.is_file()
    assert not os.path.lexists(runs_dir / run_bin.FOLDER / "linked-1")


@pytest.mark.parametrize("bin_id", ["../digits-mlp-1", "/etc", "", ".", "..", "a/b", "no-such-1", "a~b"])
def test_no_id_leads_out_of_the_bin(tmp_path: Path, bin_id: str) -> None:
    run = make_ended(tmp_path)
    other = make_ended(tmp_path)
    run_bin.delete(tmp_path, [other.run_id])
    for act in (run_bin.restore, run_bin.empty):
        with pytest.raises(ValueError, match="run_id is"):
            act(tmp_path, [bin_id])
    assert run.config.is_file()
    assert len(run_bin.content(tmp_path)) == 1
