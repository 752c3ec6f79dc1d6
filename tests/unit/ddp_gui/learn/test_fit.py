"""Tests of lessons that do not fit the machine: the obstacle, and the replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddp_gui.learn import lesson_file
from ddp_gui.learn.lesson import Lesson
from ddp_gui.learn.outcome import fit
from ddp_gui.plan import recipe
from tests.unit.ddp_gui.learn.lessons import LESSON, changed
from trainers.contract import config as config_module
from trainers.contract.config import ConfigError, Problem

pytestmark = pytest.mark.unit


def machine(*, num_gpus: int, num_cores: int) -> Callable[[dict[str, Any]], object]:
    """Return a function that checks a configuration like a machine with this many GPUs and cores."""

    def plan(config: dict[str, Any]) -> object:
        most = num_cores if config.get("device") == "cpu" or num_gpus == 0 else num_gpus
        if config["nproc_per_node"] > most:
            wrong = Problem(
                field="nproc_per_node", value=config["nproc_per_node"], allowed="fewer", suggestion=most
            )
            raise ConfigError([wrong])
        if config["dataset"] == "names":
            raise ConfigError([Problem(field="dataset", value="names", allowed="pip install it")])
        return config

    return plan


def as_written(lesson: Lesson, run: int) -> dict[str, Any]:
    """Return a run's configuration, completed with the field defaults for which lessons were written."""
    defaults = config_module.default_values()
    return {name: defaults[name] for name in recipe.FIELDS} | dict(lesson.runs[run].config)


def test_with_one_gpu_two_ranks_run_on_the_cpu() -> None:
    lesson = lesson_file.parse("a", LESSON)
    found = fit(lesson, machine(num_gpus=1, num_cores=4))
    assert found.obstacles == ["two ranks: nproc_per_node is 2; allowed: fewer."]
    assert found.way == "On this machine it runs on CPU ranks instead."
    assert found.of(lesson.runs[1].config) == {**as_written(lesson, 1), "device": "cpu"}


def test_on_a_small_machine_a_lesson_for_eight_ranks_runs_on_four() -> None:
    lesson = lesson_file.parse("a", changed("nproc_per_node = 2", "nproc_per_node = 8"))
    found = fit(lesson, machine(num_gpus=0, num_cores=4))
    assert "at most 4 ranks" in found.way
    assert [found.of(run.config)["nproc_per_node"] for run in lesson.runs] == [1, 4]


def test_where_a_data_set_is_missing_nothing_is_promised() -> None:
    lesson = lesson_file.parse("a", changed('dataset = "digits"', 'dataset = "names"'))
    found = fit(lesson, machine(num_gpus=0, num_cores=4))
    assert found.way == "" and "pip install it" in found.obstacles[0]
