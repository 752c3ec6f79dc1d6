"""rsync over the same ssh: only what has changed is sent."""

from __future__ import annotations

import re
import select
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from trainers.engines.ssh.client import Ssh, SshError, UnreachableError
from trainers.engines.ssh.site import SshHost
from trainers.machine import environment

NOTHING_FOR_S = 20
READ_BYTES = 4096
POLL_S = 0.2
_PERCENT = re.compile(rb"(\d{1,3})%")
# So rsync ends when the connection failed or broke, or nothing came for too long.
_NO_CONNECTION = (10, 12, 30, 35, 255)
_NOT_THERE = 127
# A file was deleted while it was read: the next call knows that.
_VANISHED = 24


class Rsync:
    """Copies between this machine and hosts; safe to be used by several threads."""

    def __init__(self, ssh: Ssh) -> None:
        self._ssh = ssh

    def send(
        self,
        host: SshHost,
        sources: Sequence[str],
        to: str,
        *options: str,
        here: Path | None = None,
        say_percent: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """Copy files or folders to a host; what exists there and is the same is not sent.

        Args:
            sources: one that ends in `/` is what is in that folder.
            here: the folder that relative sources start from.
            say_percent: hears how much of all bytes is there.
            is_cancelled: is asked again and again; where it says so, this ends with an error.

        Raises:
            SshError: when not all of it is there.
        """
        progress = ["--info=progress2", "--no-inc-recursive"] if say_percent else []
        words = ["--chmod=D700,F600", *progress, *options, "--", *sources, f"{_name(host)}:{to}"]
        self._run(host, words, here, say_percent, is_cancelled)

    def fetch(self, host: SshHost, what: str, to: Path, *options: str) -> None:
        """Copy a file, or what is in a folder where it ends in `/`, from a host.

        Raises:
            SshError: when not all of it came.
        """
        self._run(host, [*options, "--", f"{_name(host)}:{what}", str(to)])

    def _run(
        self,
        host: SshHost,
        arguments: Sequence[str],
        here: Path | None = None,
        say_percent: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        shell = ["-e", self._ssh.remote_shell(), f"--timeout={NOTHING_FOR_S}"]
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["rsync", "-rt", "--protect-args", *shell, *arguments],
                    env=environment.for_a_child(self._ssh.variables, keep=("SSH_AUTH_SOCK",)),
                    cwd=here,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                )
            except FileNotFoundError as error:
                raise SshError("there is no rsync here: install it") from error
            with process:
                assert process.stdout is not None
                while True:
                    if is_cancelled is not None and is_cancelled():
                        process.terminate()
                    if not select.select([process.stdout], [], [], POLL_S)[0]:
                        continue
                    if not (read := process.stdout.read(READ_BYTES)):
                        break
                    if say_percent is not None and (found := _PERCENT.findall(read)):
                        say_percent(int(found[-1]))
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace")
        if process.returncode not in (0, _VANISHED):
            raise _error(host, process.returncode, said)


def _name(host: SshHost) -> str:
    """Return the host as rsync takes it: an address with colons stands in brackets."""
    user, at, name = host.name.rpartition("@")
    return f"{user}{at}[{name}]" if ":" in name else host.name


def _error(host: SshHost, code: int, said: str) -> SshError:
    lines = [line for line in said.strip().splitlines() if not line.startswith("rsync error:")]
    words = lines[0].strip() if lines else f"rsync ended with {code}"
    if code == _NOT_THERE or "rsync: command not found" in said or "rsync: not found" in said:
        return SshError(f"{host.name} has no rsync: install it there")
    if code in _NO_CONNECTION:
        return UnreachableError(f"the connection to {host.name} is lost: {words}")
    return SshError(f"{host.name}: {words}")
