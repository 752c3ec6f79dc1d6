"""Runs the script of a logged-in user in a bubblewrap sandbox: no network, no home folder, private temporary
files.

A script runs code with the rights of the page's process. If several users share a page, the script could read
their runs and accounts. Inside the sandbox it sees the system and Python read-only, its own run's folder, and
the data folders that the page was started with, read-only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.files import plain_files
from trainers.files.json_files import read_json
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment
from trainers.machine.os_errors import explain
from trainers.watch.settings import STORE

PROGRAM = "bwrap"
# File with the folders that the run's script may read. If it exists, the script runs in a sandbox.
RECORD_FILE = "confined.json"
# Files of the rendezvous, in the run's folder.
_FILES = ("rendezvous", "store")
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache",
    "/etc/passwd", "/etc/hosts", "/etc/nsswitch.conf", "/sys/devices/system/cpu",
)  # fmt: skip
# Paths inside the sandbox, where no other process writes.
_TEMPORARY, _SHARED, _HOME = "/tmp", "/dev/shm", "/tmp/home"  # noqa: S108 # nosec B108
CHECK_TIMEOUT_S = 10.0


def obstacle() -> str | None:
    """Return why scripts cannot run in a sandbox on this machine; None if they can."""
    program = shutil.which(PROGRAM)
    if program is None:
        return "bubblewrap (bwrap) is not installed on this machine"
    try:
        trial = subprocess.run(
            [program, "--unshare-net", "--ro-bind", "/", "/", "true"],
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
            env=environment.for_a_child(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be started on this machine: {explain(error)}"
    if trial.returncode != 0:
        return f"bubblewrap cannot create a sandbox on this machine: {trial.stderr.strip()[:200]}"
    return None


def is_confined(run: RunDirectory) -> bool:
    """True if the script of a run must run in the sandbox."""
    return (run.path / RECORD_FILE).exists()


def rendezvous_variables(run: RunDirectory) -> dict[str, str]:
    """Return the environment for the rendezvous of the ranks inside the sandbox, through files of the run."""
    folder = run.path / "rendezvous"
    plain_files.remove(folder)
    folder.mkdir()
    agents, ranks = (str(folder / name) for name in _FILES)
    return {"PET_RDZV_ENDPOINT": agents, STORE: ranks}


def wrap_command(run: RunDirectory, config: Config, folder: Path, command: Sequence[str]) -> list[str]:
    """Return a command inside the sandbox and in a folder, if the run is confined.

    Raises:
        OSError: if the run must be confined and bubblewrap is missing.
    """
    record = run.path / RECORD_FILE
    if not is_confined(run):
        return list(command)
    program = shutil.which(PROGRAM)
    if program is None:
        raise OSError("the script must run in a sandbox, but bubblewrap (bwrap) is no longer installed")
    readable = [str(path) for path in read_json(record, must_be_ours=True)["readable"]]
    # Without a process namespace of its own, /proc/PID/root would lead out of the sandbox.
    options = ["--die-with-parent", "--unshare-net", "--unshare-ipc", "--unshare-pid", "--new-session"]
    options += ["--unshare-user-try", "--cap-drop", "ALL"]
    for path in SYSTEM:
        options += ["--ro-bind-try", path, path]
    # Mount these folders empty, except for the mounts below: the project and its environment may be in them.
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", _TEMPORARY, "--tmpfs", _SHARED]
    options += ["--dir", _HOME]  # not _TEMPORARY itself, because later mounts may be in it
    for path in _python_folders(config):
        options += ["--ro-bind-try", path, path]
    for gpu in sorted(Path("/dev").glob("nvidia*")):
        options += ["--dev-bind-try", str(gpu), str(gpu)]
    for path in (str(REPOSITORY / "trainers"), str(REPOSITORY / "assets" / "data"), *readable):
        options += ["--ro-bind-try", path, path]
    options += ["--bind", str(run.path), str(run.path)]
    for name in ("config.json", "status.json", "owner.json", RECORD_FILE, "code"):
        options += ["--ro-bind-try", str(run.path / name), str(run.path / name)]
    options += ["--setenv", "HOME", _HOME, "--setenv", "TMPDIR", _TEMPORARY]
    return [program, *options, "--chdir", str(folder), "--", *command]


def _python_folders(config: Config) -> list[str]:
    """Return the folders that the interpreter needs to start: its environment and its base installation."""
    interpreter = Path(config.script_python or sys.executable)
    folders = {str(interpreter.parent.parent), str(interpreter.resolve().parent.parent)}
    if not config.script_python:
        folders |= {sys.prefix, sys.base_prefix, sys.exec_prefix}
        folders |= {path for path in sys.path if path and "site-packages" in path and os.path.isdir(path)}  # noqa: PTH112
    return sorted(folders - {"/", "/usr"})
