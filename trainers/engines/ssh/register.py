"""Registers the SSH engine, for hosts with or without a shared folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trainers.engines.base import EngineOptions, register_engine
from trainers.engines.ssh import site
from trainers.engines.ssh.client import Ssh
from trainers.engines.ssh.engine import NAME, SshEngine
from trainers.engines.ssh.hosts import Hosts
from trainers.engines.ssh.unshared import UnsharedSshEngine
from trainers.machine.os_errors import explain


def engine_of(site_file: Path, *, variables: Mapping[str, str] | None = None) -> SshEngine:
    """Return the engine for the hosts of a site file.

    Args:
        site_file: Its table [ssh] names the hosts.
        variables: Added to ssh's environment.

    Raises:
        SiteError: If it is invalid.
    """
    table = site.read(site_file)
    ssh = Ssh(table.config, variables)
    if table.shared:
        return SshEngine(site_file, Hosts(table.hosts, ssh))
    # The engine copies the code to the site's folder on each host.
    hosts = [replace(host, project=f"{table.folder}/code") for host in table.hosts]
    return UnsharedSshEngine(site_file, Hosts(hosts, ssh, is_shared=False), table.folder)


@register_engine(
    NAME,
    label="the PCs of --site, by SSH",
    uses_site=True,
    site_advice='must name the hosts, such as: hosts = ["pc1", "pc2"]',
    one_user="starts every run with the SSH keys of the user who started the page",
    has_other_code=True,
)
def create(options: EngineOptions) -> SshEngine:
    """Return the engine of a site file with a host that answers.

    Raises:
        ValueError: If no host answers, or the file is invalid.
    """
    assert options.site_file is not None, "it was checked with the options"
    engine = engine_of(options.site_file)
    try:
        engine.capacity()
    except OSError as error:
        raise ValueError(f"--engine ssh needs a host that answers: {explain(error)}") from error
    return engine
