"""Tests of a run's summary: settings, differences from the previous run, and a checkpoint as a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ddp_gui.events.run_view import RunView
from ddp_gui.launch import launcher
from ddp_gui.plan import plan as plan_module
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.run.summary import describe_configuration, summarise
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import store_of
from tests.unit.stand_in import FakeDevices
from trainers.contract import code, config, rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.base import Capacity


def run_with(runs_dir: Path, born_s: int, **values: object) -> RunDirectory:
    run = rundir.create(runs_dir, config.parse(values))
    os.utime(run.config, (born_s, born_s))
    return run


def test_a_strategy_that_is_not_installed_is_not_described_as_another(tmp_path: Path, catalogue) -> None:  # noqa: F811
    run = run_with(tmp_path, 100, strategy="by_hand", **{"by_hand.piece_mb": 2})
    summary = summarise(RunView(run, 1), store_of(tmp_path, catalogue))
    assert summary["strategy_sharing"] == "The strategy by_hand is not installed on this machine."
    assert summary["config"]["by_hand.piece_mb"] == 2
    known = summarise(RunView(run_with(tmp_path, 200), 1), store_of(tmp_path, catalogue))
    assert known["strategy_sharing"].startswith("After every backward pass DDP averages")


def test_scripts_with_equal_settings_and_other_code_are_not_called_equal(tmp_path: Path, catalogue) -> None:  # noqa: F811
    store, codes = store_of(tmp_path, catalogue), ("x = 1", "x = 2", "x = 2")
    runs = [run_with(tmp_path, 100 + number, script="train.py") for number in range(len(codes))]
    for run, text in zip(runs, codes, strict=True):
        (run.path / code.FOLDER).mkdir()
        (run.path / code.FOLDER / "train.py").write_text(text)
    before = [describe_configuration(run, store)["before"] for run in runs]
    assert before[0] is None and [found["is_other_code"] for found in before[1:]] == [True, False]
    assert [found["changes"] for found in before[1:]] == [[], []]


class Cluster:
    """An engine with eight GPUs per node and its own command."""

    name = "cluster"
    is_this_machine = False

    def capacity(self, config: Config | None = None) -> Capacity:
        del config
        return Capacity(num_nodes=2, num_gpus=8, num_cores=64, gpu_names=("made up",) * 8)

    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        del resume_step
        return ["submit", str(config.world_size), f"{run_dir} of ours"]


def test_the_page_offers_and_shows_what_its_own_engine_says(tmp_path: Path, catalogue) -> None:  # noqa: F811
    engine: Any = Cluster()
    here = Scheduler(tmp_path, FakeDevices(None, ()), lambda _: None, engine).capacity()
    assert (here.num_gpus, here.default_ranks(), here.num_cores) == (8, 8, 64)
    planned = plan_module.make(plan_module.parse({"nproc_per_node": 4}, here), catalogue, here)
    assert "&& submit 4 '" in launcher.train_command(engine, planned.config, tmp_path)
