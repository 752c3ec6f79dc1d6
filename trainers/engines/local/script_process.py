"""Starts a user's script by its interpreter's torchrun or python, with the hooks of `trainers.watch`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainers.contract import code
from trainers.contract.config import Config
from trainers.contract.config.sections import parse_arguments, parse_variables
from trainers.contract.rundir import RunDirectory
from trainers.engines.base import CODE_PLACEHOLDER
from trainers.engines.local import sandbox
from trainers.engines.local.torchrun import RENDEZVOUS, literal_command
from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment, lifeline
from trainers.watch import spool

# Folder of the run in which a script runs if the user names no other folder.
WORK_FOLDER = "work"
# If a script does not poll for a stop, its ranks get SIGTERM at a stop and SIGKILL after this time.
TERM_GRACE_S = 10.0


def interpreter(config: Config) -> str:
    """Return the Python interpreter of a script."""
    return config.script_python or sys.executable


def watch_arguments(
    config: Config, run_dir: str, code_dir: str, folder: str = "", resume_step: int | None = None
) -> list[str]:
    """Return the arguments of Python or torchrun that run the script under `trainers.watch`."""
    options = ["--run-dir", run_dir, *(["--on-cpu"] if config.script_on_cpu else [])]
    options += ["--folder", folder] if folder else []
    options += [] if resume_step is None else ["--resume", str(resume_step)]
    return [
        "-m",
        "trainers.watch",
        *options,
        f"{code_dir}/{config.script}",
        *parse_arguments(config.script_arguments),
    ]


def script_command(config: Config, run_dir: str, program: Sequence[str]) -> list[str]:
    """Return the literal command of a script's run, for the project's folder; see `CODE_PLACEHOLDER`."""
    arguments = watch_arguments(config, run_dir, CODE_PLACEHOLDER, config.script_folder or CODE_PLACEHOLDER)
    variables = [f"{name}={value}" for name, value in parse_variables(config.script_environment).items()]
    if config.script_start == "python":
        return (
            ["env", *variables, interpreter(config), *arguments]
            if variables
            else [interpreter(config), *arguments]
        )
    prefix = [config.script_python, "-m", "torch.distributed.run"] if config.script_python else program
    torchrun = [*RENDEZVOUS, "--nproc-per-node", str(config.nproc_per_node), *arguments]
    command = literal_command(torchrun, prefix)
    return [*command[:1], *variables, *command[1:]]


def working_folder(run: RunDirectory, config: Config) -> Path:
    """Return the folder in which a script runs: the named one, or a copy of its code.

    A copy is needed because scripts read and write files in their folder, and the stored code must not
    change.
    """
    if config.script_folder:
        return Path(config.script_folder)
    if not (run.path / WORK_FOLDER).exists():
        shutil.copytree(run.path / code.FOLDER, run.path / WORK_FOLDER)
    return run.path / WORK_FOLDER


def launch_script(
    run: RunDirectory,
    config: Config,
    log: Path,
    details: Path,
    variables: Mapping[str, str],
    resume_step: int | None = None,
    *,
    rendezvous_args: Sequence[str] = (),
    is_first_machine: bool = True,
) -> subprocess.Popen[bytes]:
    """Start the script of a run; the kernel kills its first process when this process ends.

    Args:
        variables: added to its environment: the rendezvous, and settings for the ranks.
        resume_step: the checkpoint that the script continues from.
        rendezvous_args: torchrun's arguments for the rendezvous; empty: all ranks are on this machine.
        is_first_machine: True on the machine that prepares the run's folder. Other machines start their ranks
            later.

    Raises:
        OSError: if it cannot be started.
    """
    for stale_path in (details, log):
        plain_files.remove(stale_path)
    if is_first_machine:
        spool.clear(run.path)
    code_dir = run.path / code.FOLDER
    # Ranks of other machines change to the working folder themselves, because it may not exist yet.
    folder = working_folder(run, config) if is_first_machine else run.path
    rank_folder = "" if is_first_machine else config.script_folder or str(run.path / WORK_FOLDER)
    arguments = watch_arguments(config, str(run.path), str(code_dir), rank_folder, resume_step)
    if config.script_start == "torchrun":
        rendezvous_args = rendezvous_args or (*RENDEZVOUS, "--nproc-per-node", str(config.nproc_per_node))
        launcher = ["-m", "torch.distributed.run", *rendezvous_args]
        script_variables = dict(variables)
    else:
        launcher = ["-u"]
        error_file = details / "none" / "attempt_0" / "0" / "error.json"
        error_file.parent.mkdir(parents=True)
        script_variables = {**variables, "TORCHELASTIC_ERROR_FILE": str(error_file)}
    script_variables |= {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    script_variables |= parse_variables(config.script_environment)
    command = sandbox.wrap_command(run, config, folder, [interpreter(config), *launcher, *arguments])
    with log.open("xb") as output:
        return subprocess.Popen(
            lifeline.bound(*command),
            cwd=folder,
            env=environment.for_a_child(script_variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
