"""Creates the SSH engine of a site file: for hosts with a shared folder, or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainers.engines.ssh import site
from trainers.engines.ssh.client import Ssh
from trainers.engines.ssh.engine import SshEngine
from trainers.engines.ssh.hosts import Hosts
from trainers.engines.ssh.unshared import Copies, Layout, UnsharedSshEngine


def engine_of(site_file: Path, *, variables: Mapping[str, str] | None = None) -> SshEngine:
    """Return the engine for the hosts of a site file.

    Args:
        site_file: Its table [ssh] names the hosts.
        variables: Added to ssh's environment.

    Raises:
        SiteError: If it is invalid.
    """
    read = site.read(site_file)
    ssh = Ssh(read.config, variables)
    if read.shared:
        return SshEngine(site_file, Hosts(read.hosts, ssh))
    layout = Layout(folder=read.folder)
    # The code is copied to the layout's folder.
    hosts = Hosts([replace(host, project=layout.code) for host in read.hosts], ssh, is_shared=False)
    return UnsharedSshEngine(site_file, hosts, Copies(ssh, hosts.by_name, layout))
