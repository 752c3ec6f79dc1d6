"""The table `[ssh]` of the site file: the hosts."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainers.engines import site_file
from trainers.files.paths import REPOSITORY

FEWEST_HOSTS, MOST_HOSTS = 2, 8
# Of a host, or of an entry in ~/.ssh/config; never an option of ssh.
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.:-]*")


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """One host.

    Attributes:
        name: as one types it behind `ssh`; an entry of ~/.ssh/config will do.
        address: by which the other hosts reach it; empty: the host name that ssh itself connects to.
        python, project: of this project there; empty: the same paths as here.
    """

    # `"pc1"` for `{ name = "pc1" }`
    SHORT: ClassVar[str] = "name"

    name: str
    address: str = ""
    python: str = ""
    project: str = ""

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("address", self.address or self.name)):
            if not _NAME.fullmatch(value):
                raise ValueError(f"{what} is {value[:80]!r}, but allowed is: the name or address of a host")
        for what, value in (("python", self.python), ("project", self.project)):
            if value and not (value.startswith("/") and value.isprintable()):
                raise ValueError(f"{what} of {self.name} is {value[:80]!r}, but allowed is: a whole path")

    @property
    def python_there(self) -> str:
        return self.python or sys.executable

    @property
    def project_there(self) -> str:
        return self.project or str(REPOSITORY)


@dataclass(frozen=True, kw_only=True)
class SshSite:
    """All hosts, in the order in which runs take them.

    Attributes:
        config: a file for ssh to read in place of ~/.ssh/config; empty: that one.
    """

    hosts: tuple[SshHost, ...]
    config: str = ""

    def __post_init__(self) -> None:
        if not FEWEST_HOSTS <= len(self.hosts) <= MOST_HOSTS:
            raise ValueError(
                f"hosts are {len(self.hosts)}, but allowed is: {FEWEST_HOSTS} to {MOST_HOSTS}; for more, "
                "make a Slurm cluster of them"
            )
        names = [host.name for host in self.hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"hosts has {twice[0]} twice")


def read(file: Path) -> SshSite:
    """Return what a site file says of the hosts.

    Raises:
        SiteError: when it cannot be used.
    """
    return site_file.read(file, "ssh", SshSite)
