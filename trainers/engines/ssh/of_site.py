"""The engine that a site file asks for: its hosts share the folder of the runs, or they do not."""

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
    """Return the engine of a site file's hosts.

    Args:
        site_file: its table [ssh] names the hosts.
        variables: of ssh's environment, in addition to this process's.

    Raises:
        SiteError: when it cannot be used.
    """
    read = site.read(site_file)
    ssh = Ssh(read.config, variables)
    if read.shared:
        return SshEngine(site_file, Hosts(read.hosts, ssh))
    layout = Layout(folder=read.folder)
    # The code is brought.
    hosts = Hosts([replace(host, project=layout.code) for host in read.hosts], ssh, is_shared=False)
    return UnsharedSshEngine(site_file, hosts, Copies(ssh, hosts.by_name, layout))
