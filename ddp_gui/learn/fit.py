"""Whether a lesson's runs can be started on this machine, and how it can be done where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_gui.learn.lesson import Lesson
from ddp_gui.plan import recipe
from trainers.contract.config import ConfigError, Problem

Plan = Callable[[dict[str, Any]], object]
Configs = list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What is in the way of a lesson's runs, and what is done about it.

    Attributes:
        obstacles: why a run cannot be started as the lesson has it, one sentence a run.
        way: what is done instead, in words; empty where nothing is in the way, or nothing helps.
        most_ranks: so many ranks at most; None is as many as the lesson says.
        on_cpu: on the CPU, where the lesson leaves that open.
    """

    obstacles: list[str] = field(default_factory=list)
    way: str = ""
    most_ranks: int | None = None
    on_cpu: bool = False

    def of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration of the lesson as it is run here, with the fields' own defaults."""
        made = recipe.with_fixed_defaults(config)
        if self.on_cpu:
            made["device"] = "cpu"
        if self.most_ranks is not None and "nproc_per_node" in made:
            made["nproc_per_node"] = min(made["nproc_per_node"], self.most_ranks)
        return made


def fit(lesson: Lesson, plan: Plan) -> Fit:
    """Return how a lesson can be run here.

    Args:
        plan: checks a configuration against this machine, and raises a ConfigError.
    """
    configs = [run.config for run in lesson.runs]
    obstacles, problems = list[str](), list[Problem]()
    for run in lesson.runs:
        try:
            plan(Fit().of(run.config))
        except ConfigError as error:
            obstacles.append(f"{run.name}: {error}")
            problems += error.problems
    if not problems or any(problem.field not in ("nproc_per_node", "device") for problem in problems):
        return Fit(obstacles=obstacles)
    on_cpu = Fit(obstacles=obstacles, way="Here it runs on CPU ranks instead.", on_cpu=True)
    if any("device" not in config for config in configs) and _is_possible(on_cpu, configs, plan):
        return on_cpu
    most = min((problem.suggestion or 0 for problem in problems), default=0)
    ranks = "one rank" if most == 1 else f"{most} ranks"
    words = f"Here it runs on at most {ranks} instead, so what it shows may be smaller."
    fewer = Fit(obstacles=obstacles, way=words, most_ranks=most)
    return fewer if most > 0 and _is_possible(fewer, configs, plan) else Fit(obstacles=obstacles)


def _is_possible(fitted: Fit, configs: Configs, plan: Plan) -> bool:
    try:
        for config in configs:
            plan(fitted.of(config))
    except ConfigError:
        return False
    return True
