"""The gateway to OpenSSH: uses the user's own keys, ~/.ssh/config and jump hosts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence

from trainers.engines.ssh.site import SshHost
from trainers.machine import environment

CONNECT_WITHIN_S = 5
ANSWER_WITHIN_S = 8.0
# Exit code of ssh if it could not connect or lost the connection.
_NO_CONNECTION = 255
# Options: never prompt for a password; detect a lost connection.
_UNATTENDED = (
    *("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_WITHIN_S}"),
    *("-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3"),
)


class SshError(OSError):
    """A command on a host failed or timed out; the message names the host."""


class UnreachableError(SshError):
    """A host did not answer: the state of its processes is unknown."""


class Ssh:
    """Runs scripts on hosts. Thread-safe.

    Args:
        config: File to use instead of ~/.ssh/config; empty: the default.
        variables: Added to ssh's environment.
    """

    def __init__(self, config: str = "", variables: Mapping[str, str] | None = None) -> None:
        self._options = ["-F", config] if config else []
        self.variables = dict(variables or {})

    def ask(self, host: SshHost, script: str, *, limit_s: float = ANSWER_WITHIN_S) -> str:
        """Run a shell script on a host and return its output.

        The script is sent on standard input, so neither a login shell nor the host's process list shows it.

        Raises:
            UnreachableError: If the host does not answer in time.
            SshError: If the script fails; the message contains the last line of its standard error.
        """
        result = self._run([*_UNATTENDED, "-T", "--", host.name, "sh"], host, script, limit_s)
        if result.returncode == _NO_CONNECTION:
            raise UnreachableError(
                f"{host.name} cannot be reached: {_last_line(result.stderr) or 'no answer'}"
            )
        if result.returncode:
            reason = _last_line(result.stderr) or f"the shell ended with exit code {result.returncode}"
            raise SshError(f"{host.name}: {reason}")
        return result.stdout

    def remote_shell(self) -> str:
        """Return the ssh command for another program, such as rsync, with the same options as `ask`."""
        return shlex.join(["ssh", *self._options, *_UNATTENDED])

    def address_of(self, host: SshHost) -> str:
        """Return the host name or address to which ssh connects. Nothing is sent.

        Raises:
            SshError: If ssh's configuration is invalid.
        """
        result = self._run(["-G", "--", host.name], host, "", ANSWER_WITHIN_S)
        if result.returncode:
            raise SshError(f"{host.name}: {_last_line(result.stderr) or 'ssh -G has failed'}")
        pairs = (line.partition(" ") for line in result.stdout.splitlines())
        return next((value for key, _, value in pairs if key == "hostname"), host.name)

    def _run(
        self, arguments: Sequence[str], host: SshHost, input_text: str, limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["ssh", *self._options, *arguments],
                env=environment.for_a_child(self.variables, keep=("SSH_AUTH_SOCK",)),
                input=input_text,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnreachableError(f"{host.name} did not answer within {limit_s:.0f} s") from error
        except FileNotFoundError as error:
            raise SshError("ssh is not installed on this machine: install OpenSSH's client") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
