"""Brings a run to a host: this project's code, the data that the run names, and the run's folder."""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.ssh import scripts
from trainers.engines.ssh.client import Ssh, SshError
from trainers.engines.ssh.site import SshHost
from trainers.engines.ssh.unshared.rsync import Rsync
from trainers.files.json_files import write_json_atomically
from trainers.files.paths import REPOSITORY

# What training needs of this project.
CODE = ("trainers", "assets/data")
PATH_FIELDS = ("data_path", "images_path", "pretrained_path")
# Each side has its own.
NOT_BROUGHT = ("config.json", "status.json", "queued.json", "granted.json", "run.lock")

_MAKE_ROOM = """\
umask 077
command -v rsync >/dev/null || { echo "it has no rsync: install it there" >&2; exit 1; }
mkdir -p {folders}
"""


class CancelledError(SshError):
    """Somebody wants the run no more."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where things are on a host.

    Attributes:
        folder: all of them are below it.
    """

    folder: str

    @property
    def code(self) -> str:
        return f"{self.folder}/code"

    def run(self, run_id: str) -> str:
        return f"{self.folder}/runs/{run_id}"

    def data(self, path: str) -> str:
        """Return the folder for what lies at a path here; the next run finds it there."""
        return f"{self.folder}/data/{hashlib.sha256(path.encode()).hexdigest()[:16]}"


def bring(
    ssh: Ssh,
    rsync: Rsync,
    host: SshHost,
    layout: Layout,
    run: RunDirectory,
    say: Callable[[str], None],
    is_cancelled: Callable[[], bool],
) -> None:
    """Make a host ready to start a run.

    Args:
        say: hears in words what is being brought, and how far that is.

    Raises:
        SshError: when not all of it is there.
        OSError: when something of it cannot be read here.
    """
    config = run.read_config()
    paths = {name: str(path) for name in PATH_FIELDS if (path := _path_here(config, name)) is not None}
    folders = [layout.code, layout.run(run.run_id), *map(layout.data, paths.values())]
    ssh.ask(host, scripts.filled(_MAKE_ROOM, folders=shlex.join(folders)))

    def send(what: str, sources: list[str], to: str, *options: str, here: Path | None = None) -> None:
        if is_cancelled():
            raise CancelledError(f"run {run.run_id} was stopped before it began")
        say(f"Bringing {what} to {host.name} …")
        rsync.send(
            host,
            sources,
            to,
            *options,
            here=here,
            say_percent=lambda percent: say(f"Bringing {what} to {host.name}: {percent}% …"),
            is_cancelled=is_cancelled,
        )

    code = ("--relative", "--delete", "--exclude=__pycache__")
    send("the code", list(CODE), f"{layout.code}/", *code, here=REPOSITORY)
    for data in paths.values():
        send(Path(data).name, [data], f"{layout.data(data)}/", "--delete", "--copy-unsafe-links")
    left_out = [f"--exclude=/{name}" for name in NOT_BROUGHT]
    send("the run", [f"{run.path}/"], f"{layout.run(run.run_id)}/", "--delete", *left_out)
    there = {name: f"{layout.data(data)}/{Path(data).name}" for name, data in paths.items()}
    with tempfile.TemporaryDirectory() as folder:
        # The run's own configuration, but for where its data is.
        file = Path(folder) / run.config.name
        write_json_atomically(file, {**config.to_json(), **there})
        rsync.send(host, [str(file)], f"{layout.run(run.run_id)}/{run.config.name}")


def _path_here(config: Config, name: str) -> Path | None:
    """Return what a field names, where it is here; what is not, training will miss by its name."""
    value = getattr(config, name)
    path = Path(value).expanduser().absolute() if value else None
    return path if path is not None and path.exists() else None
