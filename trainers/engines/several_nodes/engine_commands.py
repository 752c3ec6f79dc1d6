"""A launcher's requests to the engine that started it, and its signals for the batch script.

The engine passes shell commands in the launcher's environment; a launcher without commands requests nothing.
The signals are files on the node's own disk, so that launcher and script never wait for the shared file
system.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from trainers.machine import environment

ANSWER_LIMIT_S = 3.0
COMMAND_LIMIT_S = 30.0
RETRY_S = 5.0
# Time for retries. By then the controller has noticed that no node reaches it, and handles the job itself.
RETRY_LIMIT_S = 120.0
RESTARTS_MARK = "again"


@dataclass(frozen=True, kw_only=True)
class EngineAnswer:
    """The engine's plan for a job to which it has sent SIGTERM.

    Attributes:
        will_restart: True if the engine restarts the job without a request.
        reason: The engine's reason, as text.
    """

    will_restart: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class EngineCommands:
    """Shell commands for one job; empty ones do nothing.

    Attributes:
        restart: Restarts the job.
        restart_later: Restarts the job after a delay, in which an unresponsive node can clean up the old
            start.
        cancel: Ends the job on all its nodes.
        reason: Prints `again` if the engine restarts the job without a request, then reasons, one per line.
    """

    restart: str = ""
    restart_later: str = ""
    cancel: str = ""
    reason: str = ""

    @classmethod
    def from_environment(cls) -> EngineCommands:
        """Return the commands in this launcher's environment."""
        return cls(
            restart=os.environ.get("DDP_AGAIN", ""),
            restart_later=os.environ.get("DDP_AGAIN_LATER", ""),
            cancel=os.environ.get("DDP_CANCEL", ""),
            reason=os.environ.get("DDP_WHY", ""),
        )

    def ask_reason(self) -> EngineQuestion:
        """Ask why the job has received SIGTERM. Returns immediately."""
        return EngineQuestion(self.reason)

    def run_until_accepted(self, command: str) -> None:
        """Run a command, and retry for `RETRY_LIMIT_S` until the engine accepts it."""
        deadline = time.monotonic() + RETRY_LIMIT_S
        while command and _run(command) != 0 and time.monotonic() < deadline:
            time.sleep(RETRY_S)


class EngineQuestion:
    """A pending question to the engine."""

    def __init__(self, command: str) -> None:
        self._requested_at = time.monotonic()
        self._process: subprocess.Popen[str] | None = None
        if command:
            self._process = subprocess.Popen(
                ["sh", "-c", command],
                env=environment.for_a_child(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )

    def answer(self) -> EngineAnswer | None:
        """Return the engine's answer; None if it does not answer in time."""
        if self._process is None:
            return None
        try:
            output, _ = self._process.communicate(timeout=ANSWER_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        if not lines:
            return None
        will_restart = lines[0] == RESTARTS_MARK
        reason = " ".join(lines[1:] if will_restart else lines)
        return EngineAnswer(will_restart=will_restart, reason=reason or "Slurm has requeued the job.")


class ScriptSignals:
    """Files on this node that tell its batch script how the start ends.

    Args:
        folder: Private folder on a disk of this node; None without a batch script.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def from_environment(cls, *, is_head: bool) -> ScriptSignals:
        """Return the signals of this job; only the head's node runs the batch script."""
        folder = os.environ.get("DDP_SIGNS", "")
        return cls(Path(folder) if is_head and folder else None)

    def request_restart(self) -> None:
        """Make the script request the next start."""
        self._write("again", "")

    def request_end(self, other_nodes_limit_s: float) -> None:
        """Make the script end the other launchers after this time."""
        self._write("over", f"{other_nodes_limit_s:.0f}\n")

    def request_requeue(self) -> None:
        """Make the script requeue the job as soon as it can reach the engine."""
        self._write("cut-off", "")

    def _write(self, name: str, text: str) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(FileNotFoundError):  # the script has ended
            (self._folder / name).write_text(text, encoding="ascii")


def _run(command: str) -> int:
    try:
        return subprocess.run(
            ["sh", "-c", command],
            env=environment.for_a_child(),
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_LIMIT_S,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return -1
