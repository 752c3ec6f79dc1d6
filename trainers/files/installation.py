"""Paths and commands of the program, in a checkout and as an installed wheel.

A checkout has all folders side by side and writes into its own folder. The wheel has the same folders inside
the package `rankscope`, which is never written to.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment

NAME = "rankscope"
# The modules that users call, with the equivalent command of the wheel.
COMMANDS = {
    "ddp_gui.accounts": "accounts",
    "trainers.check_machine": "check-machine",
}
GIT_TIMEOUT_S = 5.0


def is_installed() -> bool:
    """Return True if the program is an installed wheel, False if it is a checkout or a copy of one."""
    return (REPOSITORY / "__main__.py").is_file()


def command(module: str = "") -> str:
    """Return the command, as users type it, that starts the page or a module of `COMMANDS`."""
    if is_installed():
        return f"{NAME} {COMMANDS[module]}" if module else NAME
    return f"python -m {module}" if module else "python app.py"


def in_project(command: str) -> str:
    """Return a shell command that runs in the program's folder, where `python -m` finds its modules."""
    return f"cd {shlex.quote(str(REPOSITORY))} && {command}"


def default_runs_dir() -> Path:
    """Return the default runs directory, below the current folder or the user's data folder."""
    return data_folder() / "runs" if is_installed() else Path("runs")


def data_folder() -> Path:
    """Return the user's folder for data of an installed program.

    Raises:
        ValueError: if the user has no home directory.
    """
    return _user_folder("XDG_DATA_HOME", "Library/Application Support", ".local/share") / NAME


def cache_root() -> Path:
    """Return the user's folder for the caches of all programs.

    Raises:
        ValueError: if the user has no home directory.
    """
    return _user_folder("XDG_CACHE_HOME", "Library/Caches", ".cache")


def _user_folder(variable: str, on_a_mac: str, elsewhere: str) -> Path:
    configured = os.environ.get(variable, "")
    if os.path.isabs(configured):  # noqa: PTH117 - the XDG specification: relative paths are ignored
        return Path(configured)
    try:
        return Path.home() / (on_a_mac if sys.platform == "darwin" else elsewhere)
    except RuntimeError as error:
        raise ValueError(f"this user has no home directory: set {variable} to a folder") from error


def pip(*arguments: str) -> list[str]:
    """Return the pip command for this environment; uses uv if the environment has no pip."""
    uv = shutil.which("uv")
    if uv is not None and importlib.util.find_spec("pip") is None:
        return [uv, "pip", arguments[0], "--python", sys.executable, *arguments[1:]]
    return [sys.executable, "-m", "pip", *arguments]


def torch_for_gpus() -> str:
    """Return the command that replaces torch by a build for this machine's GPUs, valid in the checkout."""
    if is_installed():
        return shlex.join(pip("install", "--force-reinstall", "torch"))
    return "./run.sh --torch-build auto"


def requirements(name: str) -> str:
    """Return the path of a requirements file for a command that users copy: relative in a checkout."""
    return str(REPOSITORY / name) if is_installed() else name


def version() -> str:
    """Return the version: of the wheel, or the checked-out commit."""
    if is_installed():
        return importlib.metadata.version(NAME)
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(
            command,
            env=environment.for_a_child(),
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown: not a git checkout"
    return f"commit {answer.stdout.strip()}".replace("-dirty", ", changed since")
