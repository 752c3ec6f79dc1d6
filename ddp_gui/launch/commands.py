"""A job as a command that can be copied into an empty terminal, where it runs as it is."""

from __future__ import annotations

import shlex
from pathlib import Path

from ddp_gui.plan.plan import shown_run_dir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.base import Engine
from trainers.files.paths import REPOSITORY

# Stands for the run's directory until all else is quoted.
_PLACE = "@RUN@"
# Another run each time that the command is given.
_NEW_RUN = "by-hand-$(date +%m%d-%H%M%S)"


def train_anew(engine: Engine, config: Config, runs_dir: Path) -> str:
    """Return the command that trains a new run with a configuration."""
    run_dir = f"{shlex.quote(shown_run_dir(runs_dir))}/{_NEW_RUN}"
    return _in_the_project(shlex.join(engine.command(config, _PLACE)).replace(_PLACE, run_dir))


def resume(engine: Engine, run: RunDirectory, step: int) -> str:
    """Return the command that resumes a run from its checkpoint of `step`."""
    return _in_the_project(shlex.join(engine.command(run.read_config(), shown_run_dir(run.path), step)))


def _in_the_project(command: str) -> str:
    return f"cd {shlex.quote(str(REPOSITORY))} && {command}"
