"""Hosts as network namespaces of this machine, with a shared file system."""

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
END_S = 10.0


class NoNamespacesError(RuntimeError):
    """This process is not permitted to create network namespaces."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """A simulated host."""

    name: str
    address: str
    namespace: str
    hosts_file: Path

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on this host, with its host name and hosts file.

        `ip netns exec` would remount /sys without the entries that slurmd needs.
        """
        script = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
        entered = ["nsenter", f"--net=/var/run/netns/{self.namespace}", "unshare", "--uts", "--mount"]
        return [*entered, "sh", "-c", script, "inside", self.name, str(self.hosts_file), *command]


@dataclass(frozen=True, kw_only=True)
class Network:
    """The hosts, and the login node through which users connect."""

    hosts: tuple[Host, ...]
    login: Host


@contextlib.contextmanager
def network(folder: Path, names: Sequence[str]) -> Iterator[Network]:
    """Create hosts with these names, and `login`, on one network, and delete them afterwards.

    Everything is in namespaces: browsers on this machine treat an interface that appears or disappears
    outside of them as a change of the network and abort their requests.

    Raises:
        NoNamespacesError: a command was refused; the message names it.
    """
    addresses = {name: f"10.217.0.{place + 1}" for place, name in enumerate((LOGIN, *names))}
    # Includes the 127.0.1.1 line that Debian adds for the host name, which makes a naive rendezvous hang.
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
    """Return the PIDs of all processes on a host."""
    return [int(pid) for pid in _ip("netns", "pids", host.namespace).split()]


@contextlib.contextmanager
def without_cable(host: Host) -> Iterator[None]:
    """Disconnect a host until the block ends: its packets are lost without an error."""
    _ip("-n", host.namespace, "link", "set", "eth0", "down")
    try:
        yield
    finally:
        _ip("-n", host.namespace, "link", "set", "eth0", "up")


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a daemon; kill it if it does not end."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _make(stack: contextlib.ExitStack, folder: Path, name: str, address: str, known: str) -> Host:
    """Create a host without a connection; the stack deletes it."""
    namespace = f"ddp{os.getpid()}-{name}-{secrets.token_hex(4)}"  # host names are not unique on this machine
    _ip("netns", "add", namespace)
    stack.callback(_remove, namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")
    hosts_file = folder / f"hosts-{name}"
    hosts_file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n{known}")
    return Host(name=name, address=address, namespace=namespace, hosts_file=hosts_file)


def _remove(namespace: str) -> None:
    """Delete a host and kill all its processes: Slurm's jobs outlive the daemon that started them."""
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
