"""The table `[ssh]` of the site file."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from trainers.engines import site_file
from trainers.files.plain_files import REPOSITORY

MIN_HOSTS, MAX_HOSTS = 2, 8
# Minimum depth of `folder`, whose content is replaced: excludes a disk's root and the parent of homes.
MIN_FOLDER_DEPTH = 3
# A host name, or an entry of ~/.ssh/config; must not look like an option of ssh.
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.:-]*")


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """One host.

    Attributes:
        name: As typed after `ssh`; may be an entry of ~/.ssh/config.
        address: Address under which the other hosts reach it; empty: the host name that ssh connects to.
        python, project: Paths of Python and this project on the host; empty: the same as here.
    """

    # `"pc1"` for `{ name = "pc1" }`
    SHORT: ClassVar[str] = "name"

    name: str
    address: str = ""
    python: str = ""
    project: str = ""

    def __post_init__(self) -> None:
        for field, value in (("name", self.name), ("address", self.address or self.name)):
            if not _NAME.fullmatch(value):
                raise ValueError(f"{field} is {value[:80]!r}; allowed: the name or address of a host")
        for field, value in (("python", self.python), ("project", self.project)):
            if value and not (value.startswith("/") and value.isprintable()):
                raise ValueError(f"{field} of {self.name} is {value[:80]!r}; allowed: an absolute path")

    @property
    def remote_python(self) -> str:
        return self.python or sys.executable

    @property
    def remote_project(self) -> str:
        return self.project or str(REPOSITORY)


@dataclass(frozen=True, kw_only=True)
class SshSite:
    """All hosts, in the order in which runs use them.

    Attributes:
        config: File that ssh reads instead of ~/.ssh/config; empty: the default.
        shared: True if all hosts can access the runs directory. Otherwise each run is copied to one host.
        folder: Folder on each host for copied runs, code and data.
    """

    hosts: tuple[SshHost, ...]
    config: str = ""
    shared: bool = True
    folder: str = ""

    def __post_init__(self) -> None:
        min_hosts = MIN_HOSTS if self.shared else 1
        if not min_hosts <= len(self.hosts) <= MAX_HOSTS:
            raise ValueError(
                f"hosts are {len(self.hosts)}; allowed: {min_hosts} to {MAX_HOSTS}; for more, "
                "make a Slurm cluster of them (docs/make-slurm.md)"
            )
        if self.shared and self.folder:
            raise ValueError("folder is allowed only with shared = false")
        if not self.shared:
            self._check_folder()
        names = [host.name for host in self.hosts]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"hosts has {duplicates[0]} twice")

    def _check_folder(self) -> None:
        is_absolute = self.folder.startswith("/") and self.folder.isprintable()
        if not is_absolute or len(PurePosixPath(self.folder).parts) < MIN_FOLDER_DEPTH:
            allowed = 'an absolute path on the hosts for the copied files, such as "/home/ann/ddp-web"'
            raise ValueError(f"folder is {self.folder[:80]!r}, but allowed with shared = false is: {allowed}")
        if hosts_with_project := [host.name for host in self.hosts if host.project]:
            raise ValueError(
                f"project of {hosts_with_project[0]} has no effect with shared = false, which copies the code"
            )


def read(file: Path) -> SshSite:
    """Return the hosts of a site file.

    Raises:
        SiteError: If it is invalid.
    """
    return site_file.read(file, "ssh", SshSite)
