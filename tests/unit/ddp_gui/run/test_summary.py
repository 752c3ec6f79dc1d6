"""Tests of a run's summary: settings, differences from the previous run, and a checkpoint as a file."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events.run_view import RunView
from ddp_gui.plan import plan as plan_module
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.run.downloads import zip_of
from ddp_gui.run.summary import describe_configuration, summarise
from ddp_gui.train import choices
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from tests.unit.stand_in import FakeDevices
from trainers.contract import config, events, rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import Handle
from trainers.engines import registry
from trainers.engines.base import Capacity, Description


def run_with(runs_dir: Path, born_s: int, **values: object) -> RunDirectory:
    run = rundir.create(runs_dir, config.parse(values))
    os.utime(run.config, (born_s, born_s))
    return run


def test_the_run_before_is_the_newest_older_one_that_can_be_read(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run_with(tmp_path, 100, batch_size=8)
    older = run_with(tmp_path, 200, learning_rate=0.1, name="older")
    broken = run_with(tmp_path, 250)
    broken.config.write_text("{")
    os.utime(broken.config, (250, 250))
    run_with(tmp_path, 270, model="script", dataset="script", script="train.py")  # has other settings
    now = run_with(tmp_path, 300, learning_rate=0.2, name="now")
    run_with(tmp_path, 400, seed=5)
    described = describe_configuration(now, store_of(tmp_path, catalogue))
    assert described["before"] == {
        "run_id": older.run_id,
        "changes": [{"field": "learning_rate", "label": "Learning rate", "before": 0.1, "now": 0.2}],
    }


def test_the_first_run_has_none_before_it(tmp_path: Path, catalogue) -> None:  # noqa: F811
    assert describe_configuration(run_with(tmp_path, 100), store_of(tmp_path, catalogue))["before"] is None


def test_settings_that_mean_nothing_here_are_left_out(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = run_with(tmp_path, 100, batch_size=8)
    fields = {
        field["field"]: field
        for field in describe_configuration(run, store_of(tmp_path, catalogue))["fields"]
    }
    assert "momentum" not in fields, "AdamW has none"
    assert not fields["batch_size"]["is_default"] and fields["seed"]["is_default"]


def test_a_summary_knows_the_plan_of_a_run_nobody_has_read_yet(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = make_run(tmp_path)
    plan = {"num_train": 77, "num_parameters": 5, "global_batch": 1, "steps_per_epoch": 77, "num_steps": 770}
    line = events.encode_event({"seq": 0, "time_unix_s": 1.0, "kind": "plan", "num_validation": 1, **plan})
    run.events.write_bytes(line + b"\n" + run.events.read_bytes())
    view = RunView(run, 1)
    summary = summarise(view, store_of(tmp_path, catalogue))
    assert (summary["num_train"], summary["num_steps"], summary["num_parameters"]) == (77, 770, 5)
    assert view.unread()[0] > 0, "the summary does not wait for the whole file"
    assert summary["is_live"] is False


def test_a_strategy_that_is_not_installed_is_not_described_as_another(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = run_with(tmp_path, 100, strategy="by_hand", **{"by_hand.piece_mb": 2})
    summary = summarise(RunView(run, 1), store_of(tmp_path, catalogue))
    assert summary["strategy_sharing"] == "The strategy by_hand is not installed here."
    assert summary["config"]["by_hand.piece_mb"] == 2
    known = summarise(RunView(run_with(tmp_path, 200), 1), store_of(tmp_path, catalogue))
    assert known["strategy_sharing"].startswith("After every backward pass DDP averages")


class Cluster:
    """An engine with eight GPUs per node and its own command."""

    name = "cluster"
    has_queue = False
    is_this_machine = False

    def describe(self, handle: Handle, *, is_queued: bool = False) -> Description:
        del handle, is_queued
        return Description()

    def ended_status(self, run: RunDirectory, status: Status) -> Status:
        del run
        return status

    def script_of(self, run: RunDirectory) -> str | None:
        return f"#SBATCH of {run.run_id}"

    def capacity(self, config: Config | None = None) -> Capacity:
        del config
        return Capacity(num_nodes=2, num_gpus=8, num_cores=64, gpu_names=("made up",) * 8)

    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        del resume_step
        return ["submit", str(config.world_size), f"{run_dir} of ours"]


def test_command_and_most_ranks_are_those_of_the_runs_engine(
    tmp_path: Path,
    catalogue,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry._ENGINES, "cluster", Cluster())
    run = run_with(tmp_path, 100, nproc_per_node=4)
    store = store_of(tmp_path, catalogue)
    run.write_status(Status(state="stopped", engine="cluster"))
    said = summarise(RunView(run, 1), store)
    assert said["max_ranks"] == 8 and said["script"] == f"#SBATCH of {run.run_id}"
    assert "&& submit 4 '" in said["command"] and said["command"].endswith(" of ours'")
    run.write_status(Status(state="stopped", engine="of another program"))
    assert "torchrun " in summarise(RunView(run, 1), store)["command"]


def test_the_page_offers_and_shows_what_its_own_engine_says(tmp_path: Path, catalogue) -> None:  # noqa: F811
    engine: Any = Cluster()
    here = Scheduler(tmp_path, FakeDevices(None, ()), lambda _: None, engine).capacity()
    assert (here.num_gpus, here.default_ranks(), here.num_cores) == (8, 8, 64)
    planned = plan_module.make(plan_module.parse({"nproc_per_node": 4}, here), catalogue, here)
    assert "&& submit 4 '" in choices.command(planned, tmp_path, engine)


def test_options_of_plug_ins_are_among_what_changed(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run_with(tmp_path, 100, strategy="by_hand", **{"by_hand.piece_mb": 2})
    now = run_with(tmp_path, 200, strategy="by_hand", **{"by_hand.piece_mb": 4})
    before = describe_configuration(now, store_of(tmp_path, catalogue))["before"]
    assert before["changes"] == [
        {"field": "by_hand.piece_mb", "label": "by_hand.piece_mb", "before": 2, "now": 4}
    ]


def test_a_checkpoint_comes_as_a_zip_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "step_5"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(os.urandom(3_000_000))
    (folder / "deep" / "empty").touch()
    pieces = list(zip_of(folder, "run-step-5"))
    assert max(map(len, pieces)) < 1_200_000, "it is sent piece by piece"
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == ["run-step-5/deep/empty", "run-step-5/model.safetensors"]
        assert archive.read("run-step-5/model.safetensors") == (folder / "model.safetensors").read_bytes()
