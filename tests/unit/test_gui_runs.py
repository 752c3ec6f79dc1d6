"""The list of runs and the view of one, read from directories alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddp_gui import launcher
from ddp_gui.runs import RunStore
from tests.unit.test_gui_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.test_gui_series import evaluation, state, step
from trainers.contract import config, rundir
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status


def make_run(runs_dir: Path, *, until: int = 10, ended: str = "stopped") -> RunDirectory:
    run = rundir.create(runs_dir, config.parse({"num_epochs": 1}))
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
    return run


def test_a_row_says_what_the_list_shows(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    (row,) = RunStore(tmp_path).rows(catalogue)
    assert row["run_id"] == run.run_id == "fashion_mnist-cnn-1"
    assert (row["state"], row["step"], row["num_steps"], row["loss"]) == ("stopped", 10, 63, 0.1)
    assert row["best_metric"] == {"name": "accuracy", "value": 0.75, "step": 10}
    assert row["created_unix_s"] == 100.0, "the age is in the events: a copied folder keeps it"


def test_one_unreadable_run_does_not_hide_the_others(tmp_path: Path, catalogue) -> None:  # noqa: F811
    make_run(tmp_path)
    broken = make_run(tmp_path)
    broken.config.write_text("{half")
    rows = {row["run_id"]: row for row in RunStore(tmp_path).rows(catalogue)}
    assert rows["fashion_mnist-cnn-1"]["state"] == "stopped"
    assert "cannot be read" in rows[broken.run_id]["error"]


def test_a_view_follows_the_file_and_a_copied_directory(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    store = RunStore(tmp_path)
    view = store.view(run.run_id)
    assert view.catch_up()
    assert not view.catch_up(), "nothing new"
    assert view.series.last_step["step"] == 10
    text = run.events.read_text()
    run.events.unlink()
    run.events.write_text("".join(line + "\n" for line in text.splitlines()[:4]))
    assert view.catch_up()
    assert view.series.last_step["step"] == 3


def test_only_live_runs_take_commands(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(ValueError, match="is stopped: only a run that is going on"):
        launcher.send(run, "stop")
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
    with pytest.raises(ValueError, match="checkpoint_step is 15, but allowed is: one of 10, 20"):
        launcher.pick_checkpoint(run, 15)
