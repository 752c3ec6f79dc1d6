"""Two PCs for tests that are reached by SSH: real OpenSSH daemons with keys of their own, on made-up hosts.

The person sits on a third host: ssh is run there, with a configuration file of its own. No service, no key
and no file of the system or of whoever runs the tests is touched.
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

from tests.cluster.disk import SMALL_DISK, mount_small_disk
from tests.cluster.network import Host, Network, network, processes_on, without_cable
from tests.harness import wait_until

PCS = ("pc1", "pc2")
PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync", "flock", "setsid", "ip", "nsenter")
PORT = 2222
BROUGHT = "home/brought here"
UP_S = 60.0
END_S = 10.0

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
    """Hosts that answer.

    Attributes:
        environment: in which `ssh` is run as on the person's own machine.
        config: the file for ssh's `-F`.
        site_file: names the hosts, for the engine.
        unshared_site_file: the same, as if they shared no folder.
    """

    network: Network
    environment: Mapping[str, str]
    config: Path
    site_file: Path
    unshared_site_file: Path
    folder: Path

    @property
    def brought(self) -> Path:
        """The hosts' folder for what is brought there; no page looks into it."""
        return self.folder / BROUGHT

    @property
    def small_disk(self) -> Path:
        """A folder of 64 MB that all hosts share."""
        return self.folder / SMALL_DISK

    def processes_on(self, name: str) -> list[int]:
        """Return the numbers of all processes on a host."""
        return processes_on(self._host(name))

    @contextlib.contextmanager
    def without_cable(self, name: str) -> Iterator[None]:
        """Pull a host's cable for a while."""
        with without_cable(self._host(name)):
            yield

    def leave_one_core_each(self) -> None:
        """Let what is started on a host from now on use one core, as on a host that has no more."""
        cores = sorted(os.sched_getaffinity(0))
        for number, host in enumerate(self.network.hosts):
            for pid in processes_on(host):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(pid, {cores[number % len(cores)]})

    def _host(self, name: str) -> Host:
        return next(host for host in self.network.hosts if host.name == name)


def what_is_missing() -> str:
    """Return why no hosts can be made here; empty where they can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    if missing:
        packages = "openssh-server openssh-client rsync util-linux"
        return f"{', '.join(missing)} not installed: apt-get install {packages}"
    return "" if os.geteuid() == 0 else "network namespaces and sshd need root"


@contextlib.contextmanager
def ssh_hosts(folder: Path) -> Iterator[SshHosts]:
    """Start the daemons; when the block ends, each is ended and waited for."""
    with contextlib.ExitStack() as stack:
        mount_small_disk(stack, folder)
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
    """Have sshd on a cluster's login node; yield a path for programs whose ssh is that of who may log in."""
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
    """Start sshd on hosts; return the configuration of ssh for who may log in there."""
    _make_key(folder / "key")
    (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd gives up its rights there
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
    """Start sshd on a host; it is ended with the stack."""
    _make_key(folder / f"host_key-{host.name}")
    # The shell of whoever runs the tests may do much when it starts, and keep locks when it is killed.
    (folder / f"home-{host.name}").mkdir()
    config = folder / f"sshd_config-{host.name}"
    config.write_text(_DAEMON.format(port=PORT, address=host.address, folder=folder, name=host.name))
    sshd = shutil.which("sshd", path=_search_path())
    assert sshd is not None
    log = stack.enter_context((folder / f"sshd-{host.name}.log").open("wb"))
    command = host.inside([sshd, "-D", "-e", "-f", str(config)])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
    """Return where programs are looked for: root's own, such as sshd, are not in everybody's path."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
