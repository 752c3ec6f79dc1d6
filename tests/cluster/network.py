"""Hosts that are network namespaces of this machine: own addresses, names and interfaces; one file system."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX_BITS = 24
LOGIN = "login"
KILLED_AFTER_S = 0.05


class NoNamespacesError(RuntimeError):
    """This machine lets nobody here make network namespaces."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One made-up machine."""

    name: str
    address: str
    namespace: str
    hosts_file: Path

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one on this host, with its name and its hosts file.

        `ip netns exec` would mount /sys anew, without what slurmd looks for in it.
        """
        script = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
        entered = ["nsenter", f"--net=/var/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        return [*entered, "sh", "-c", script, "inside", self.name, str(self.hosts_file), *command]


@dataclass(frozen=True, kw_only=True)
class Network:
    """The hosts, and one more by which people come in: the login node of a cluster."""

    hosts: tuple[Host, ...]
    login: Host


@contextlib.contextmanager
def network(folder: Path, names: Sequence[str]) -> Iterator[Network]:
    """Make hosts with these names, and `login`, that reach each other; nothing of them is left afterwards.

    All of it lies in namespaces. An interface that came and went outside of them would be a change of the
    network to every browser on this machine, and it would break off what it is loading.

    Raises:
        NoNamespacesError: saying which command was refused.
    """
    addresses = {name: f"10.217.0.{place + 1}" for place, name in enumerate((LOGIN, *names))}
    # Debian's own line for the host's name, which makes a naive rendezvous hang, is there as well.
    known = "".join(f"{address} {name}\n" for name, address in addresses.items())
    with contextlib.ExitStack() as stack:
        hosts = [_make(stack, folder, name, address, known) for name, address in addresses.items()]
        login, *others = hosts
        _ip("-n", login.namespace, "link", "add", "bridge", "type", "bridge")
        _ip("-n", login.namespace, "addr", "add", f"{login.address}/{PREFIX_BITS}", "dev", "bridge")
        _ip("-n", login.namespace, "link", "set", "bridge", "up")
        for host in others:
            inner = ("peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", login.namespace, "link", "add", host.name, "type", "veth", *inner)
            _ip("-n", login.namespace, "link", "set", host.name, "master", "bridge", "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/{PREFIX_BITS}", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
        yield Network(hosts=tuple(others), login=login)


def processes_on(host: Host) -> list[int]:
    """Return the numbers of all processes on a host."""
    return [int(pid) for pid in _ip("netns", "pids", host.namespace).split()]


@contextlib.contextmanager
def without_cable(host: Host) -> Iterator[None]:
    """Pull a host's cable for a while: what it sends gets lost, and nobody is told."""
    _ip("-n", host.namespace, "link", "set", "eth0", "down")
    try:
        yield
    finally:
        _ip("-n", host.namespace, "link", "set", "eth0", "up")


def _make(stack: contextlib.ExitStack, folder: Path, name: str, address: str, known: str) -> Host:
    """Make a host without a connection; it goes with the stack."""
    namespace = f"ddp{os.getpid()}-{name}-{secrets.token_hex(2)}"  # others have a host of this name
    _ip("netns", "add", namespace)
    stack.callback(_remove, namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")
    hosts_file = folder / f"hosts-{name}"
    hosts_file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{known}")
    return Host(name=name, address=address, namespace=namespace, hosts_file=hosts_file)


def _remove(namespace: str) -> None:
    """Delete a host and all that runs on it: Slurm's jobs outlive the daemon that started them."""
    while pids := _ip("netns", "pids", namespace).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(KILLED_AFTER_S)
    _ip("netns", "del", namespace)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
