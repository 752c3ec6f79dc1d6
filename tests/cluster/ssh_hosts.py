"""Two PCs for tests, reachable by SSH: real OpenSSH daemons with private keys, on simulated hosts.

The user works on a third host, where ssh runs with a private configuration file. No service, key or file of
the system or of the user who runs the tests is changed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.network import Host, Network, end, network, processes_on, without_cable
from tests.harness import wait_until

PCS = ("pc1", "pc2")
PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync", "flock", "setsid", "ip", "nsenter")
PORT = 2222
BROUGHT = "home/brought here"
UP_S = 60.0

_DAEMON = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key-{name}
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd-{name}.pid
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
MaxStartups 100
SetEnv XDG_CACHE_HOME={folder}/cache-{name} HOME={folder}/home-{name}
"""
_PERSON = """\
Host {names}
  Port {port}
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


@dataclass(frozen=True, kw_only=True)
class SshHosts:
    """Hosts whose sshd is up.

    Attributes:
        environment: variables with which `ssh` runs as on the user's machine.
        config: the file for ssh's `-F`.
        site_file: names the hosts, for the engine.
        unshared_site_file: the same hosts, configured without a shared folder.
    """

    network: Network
    environment: Mapping[str, str]
    config: Path
    site_file: Path
    unshared_site_file: Path
    folder: Path

    @property
    def brought(self) -> Path:
        """The hosts' folder for copied files; no page reads it."""
        return self.folder / BROUGHT

    def processes_on(self, name: str) -> list[int]:
        """Return the PIDs of all processes on a host."""
        return processes_on(self._host(name))

    @contextlib.contextmanager
    def without_cable(self, name: str) -> Iterator[None]:
        """Disconnect a host until the block ends."""
        with without_cable(self._host(name)):
            yield

    def leave_one_core_each(self) -> None:
        """Limit processes that are started on a host from now on to one core."""
        cores = sorted(os.sched_getaffinity(0))
        for number, host in enumerate(self.network.hosts):
            for pid in processes_on(host):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(pid, {cores[number % len(cores)]})

    def _host(self, name: str) -> Host:
        return next(host for host in self.network.hosts if host.name == name)


def what_is_missing() -> str:
    """Return the reason why no hosts can be created here, or ""."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if missing:
        packages = "openssh-server openssh-client rsync util-linux"
        return f"{', '.join(missing)} not installed: apt-get install {packages}"
    return "" if os.geteuid() == 0 else "network namespaces and sshd need root"


@contextlib.contextmanager
def ssh_hosts(folder: Path) -> Iterator[SshHosts]:
    """Start the daemons. At the end of the block each is terminated and waited for."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(network(folder, PCS))
        config = _start_daemons(stack, folder, made.hosts)
        path = f"{_command_on(made.login, folder)}{os.pathsep}{os.environ['PATH']}"
        site_file = folder / "site.toml"
        names = ", ".join(f'"{name}"' for name in PCS)
        site_file.write_text(f'[ssh]\nhosts = [{names}]\nconfig = "{config}"\n')
        unshared = folder / "unshared.toml"
        unshared.write_text(f'{site_file.read_text()}shared = false\nfolder = "{folder / BROUGHT}"\n')
        hosts = SshHosts(
            network=made,
            environment={"PATH": path},
            config=config,
            site_file=site_file,
            unshared_site_file=unshared,
            folder=folder,
        )
        for host in made.hosts:
            wait_until(f"sshd on {host.name}", partial(_answers, hosts, host), UP_S)
        yield hosts


@contextlib.contextmanager
def login_by_ssh(folder: Path, host: Host) -> Iterator[str]:
    """Run sshd on a cluster's login node. Yield a PATH whose `ssh` can log in there."""
    with contextlib.ExitStack() as stack:
        config = _start_daemons(stack, folder, [host])
        commands = _command_on(host, folder, "-F", str(config))
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        command = ["ssh", host.name, "true"]
        environment = {**os.environ, "PATH": path}
        wait_until(
            "sshd of the login node",
            lambda: (
                subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
            ),
            UP_S,
        )
        yield path


def _start_daemons(stack: contextlib.ExitStack, folder: Path, hosts: Sequence[Host]) -> Path:
    """Start sshd on hosts. Return the ssh configuration of a user who can log in there."""
    _make_key(folder / "key")
    (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs this folder for privilege separation
    known = []
    for host in hosts:
        _start_daemon(stack, folder, host)
        kind, key, *_ = (folder / f"host_key-{host.name}.pub").read_text().split()
        known.append(f"[{host.name}]:{PORT} {kind} {key}\n")
    (folder / "known_hosts").write_text("".join(known))
    config = folder / "ssh_config"
    names = " ".join(host.name for host in hosts)
    config.write_text(_PERSON.format(names=names, port=PORT, folder=folder))
    return config


def _start_daemon(stack: contextlib.ExitStack, folder: Path, host: Host) -> None:
    """Start sshd on a host. The stack terminates it."""
    _make_key(folder / f"host_key-{host.name}")
    # The shell profile of the user who runs the tests may start programs, and leave locks when killed.
    (folder / f"home-{host.name}").mkdir()
    config = folder / f"sshd_config-{host.name}"
    config.write_text(_DAEMON.format(port=PORT, address=host.address, folder=folder, name=host.name))
    sshd = shutil.which("sshd", path=_search_path())
    assert sshd is not None
    log = stack.enter_context((folder / f"sshd-{host.name}.log").open("wb"))
    command = host.inside([sshd, "-D", "-e", "-f", str(config)])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(end, process)


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _command_on(host: Host, folder: Path, *options: str) -> Path:
    """Return a folder with an `ssh` that runs on a host, with these options before all others."""
    commands = folder / "bin"
    commands.mkdir()
    script = commands / "ssh"
    command = host.inside([shutil.which("ssh") or "ssh", *options])
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)
    return commands


def _answers(hosts: SshHosts, host: Host) -> bool:
    command = ["ssh", "-F", str(hosts.config), "-o", "BatchMode=yes", host.name, "true"]
    environment = {**os.environ, **hosts.environment}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def _search_path() -> str:
    """Return the search path for programs: sbin, which contains sshd, is not in every user's PATH."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
