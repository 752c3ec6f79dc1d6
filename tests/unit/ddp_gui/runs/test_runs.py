"""Tests of the list of runs and of the view of one run, both read only from directories."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from ddp_gui.events import run_view
from ddp_gui.launch import launcher
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import bin as run_bin
from ddp_gui.runs.runs import RunStore
from tests.unit.checkpoints import leave_checkpoint
from tests.unit.ddp_gui.events.test_series import evaluation, state, step
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
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
    run.write_status(Status(state=ended, exit_code=0))  # type: ignore[arg-type]


def as_read(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as decoded by a browser."""
    read: dict[str, Any] = json.loads(run_view.encode_message(message))
    return read


def store_of(runs_dir: Path, catalogue: Catalogue) -> RunStore:  # noqa: F811
    """Return a store whose catalogue needs no process."""
    return RunStore(runs_dir, SimpleNamespace(get=lambda: catalogue))  # type: ignore[arg-type]


NAMES = ("a run", "run [2] (copy)", "пробег-1", "运行　1", "50% #1 & more?", "l'été", "<b>bold<b>", "x" * 240)


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_run_opens_under_almost_any_folder_name(tmp_path: Path, catalogue, name: str) -> None:  # noqa: F811
    run = make_run(tmp_path)
    run.path.rename(tmp_path / name)
    store = store_of(tmp_path, catalogue)
    (row,) = store.rows()
    assert (row["run_id"], row["state"], row["error"]) == (name, "stopped", None)
    assert store.view(name).run.path == tmp_path / name
    ((_, bin_id),) = run_bin.delete(tmp_path, [name])
    assert run_bin.restore(tmp_path, [bin_id]) == [(bin_id, name)]


@pytest.mark.parametrize(
    "name", [b"a,b", b"-rf", b"caf\xe9", b"zero\xe2\x80\x8bwidth", b"back\\slash", b" space"]
)
def test_a_folder_that_is_no_run_id_says_so(tmp_path: Path, catalogue, name: bytes) -> None:  # noqa: F811
    run = make_run(tmp_path)
    run.path.rename(tmp_path / os.fsdecode(name))
    (row,) = store_of(tmp_path, catalogue).rows()
    assert row["state"] == "lost" and "Rename the folder" in row["error"]
    assert orjson.dumps(row)


def test_one_unreadable_run_does_not_hide_the_others(tmp_path: Path, catalogue) -> None:  # noqa: F811
    make_run(tmp_path)
    broken = make_run(tmp_path)
    broken.config.write_text("{half")
    rows = {row["run_id"]: row for row in store_of(tmp_path, catalogue).rows()}
    assert rows["fashion_mnist-cnn-1"]["state"] == "stopped"
    assert "cannot be read" in rows[broken.run_id]["error"]


def test_only_live_runs_take_commands(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ValueError, match="is stopped: only a live run"):
        launcher.stop(run, liveness.read_status(run), save=True)
    assert not run.commands.exists()


def test_a_chosen_checkpoint_must_be_there(tmp_path: Path) -> None:
    run = make_run(tmp_path)
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


def test_a_loss_and_a_metric_of_nan_are_shown_as_missing(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    file = EventFile(run.events)
    fields = {"step": 11, "epoch": 0, "loss": math.nan, "metrics": {"accuracy": math.nan}}
    file.append([(201.0, "eval", fields)])
    file.close()
    view = store_of(tmp_path, catalogue).view(run.run_id)
    view.catch_up()
    message = as_read(run_view.message_for(view, -1))
    assert message["head"]["metrics"] == {"accuracy": None}
    assert message["traces"]["metric:accuracy"]["y"] == [0.75, None]
    assert message["head"]["best"]["value"] == 0.75


def test_a_run_made_anew_under_an_old_id_does_not_show_the_old_numbers(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path, until=50)
    store = store_of(tmp_path, catalogue)
    assert store.rows()[0]["step"] == 50
    run.events.unlink()
    file = EventFile(run.events)
    file.append([(1.0, "state", {"state": "starting", "reason": ""})])
    file.close()
    assert store.rows()[0]["step"] == 0
