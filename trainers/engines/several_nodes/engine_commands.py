"""What a launcher asks of the engine that has started it, and the signs that it leaves for its batch script.

The engine gives shell commands in the launcher's environment; without any nothing is asked. The signs lie in
a folder of the node alone, so that neither side waits for the shared one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from trainers.machine import environment

ANSWER_WITHIN_S = 3.0
COMMAND_LIMIT_S = 30.0
RETRY_S = 5.0
# A controller that is reached by none of the nodes for longer knows itself what to do with the job.
TRY_FOR_S = 120.0
AGAIN = "again"


@dataclass(frozen=True, kw_only=True)
class EngineAnswer:
    """What the engine does with a job that it has told to end.

    Attributes:
        starts_again: by itself.
        why: as the engine says it.
    """

    starts_again: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class EngineCommands:
    """Shell commands of one job; empty ones do nothing.

    Attributes:
        again: starts the job again.
        again_later: the same, when a node that does not answer has had time to clear the old start away.
        cancel: ends the job, on all its nodes.
        why: prints `again` where the engine starts the job again by itself, and then reasons, one a line.
    """

    again: str = ""
    again_later: str = ""
    cancel: str = ""
    why: str = ""

    @classmethod
    def of_environment(cls) -> EngineCommands:
        """Return those that the engine has given to this launcher."""
        return cls(
            again=os.environ.get("DDP_AGAIN", ""),
            again_later=os.environ.get("DDP_AGAIN_LATER", ""),
            cancel=os.environ.get("DDP_CANCEL", ""),
            why=os.environ.get("DDP_WHY", ""),
        )

    def ask_why(self) -> Question:
        """Ask why the job is to end; returns at once."""
        return Question(self.why)

    def insist(self, command: str) -> None:
        """Run a command, again and again for a while until the engine takes it."""
        deadline = time.monotonic() + TRY_FOR_S
        while command and _run(command) != 0 and time.monotonic() < deadline:
            time.sleep(RETRY_S)


class Question:
    """A question to the engine that is under way."""

    def __init__(self, command: str) -> None:
        self._asked_at = time.monotonic()
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
        """Return the engine's answer; None where it gives none in time."""
        if self._process is None:
            return None
        try:
            said, _ = self._process.communicate(timeout=ANSWER_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if not lines:
            return None
        starts_again = lines[0] == AGAIN
        why = " ".join(lines[1:] if starts_again else lines)
        return EngineAnswer(
            starts_again=starts_again, why=why or "Slurm has put the job back into its queue."
        )


class Signs:
    """Files on this node by which its batch script learns how the start ends.

    Args:
        folder: private, on a disk of this node; None without a batch script.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def of_environment(cls, *, is_head: bool) -> Signs:
        """Return those of the batch script, which runs on the node of the head."""
        folder = os.environ.get("DDP_SIGNS", "")
        return cls(Path(folder) if is_head and folder else None)

    def ask_again(self) -> None:
        """Have the script ask for the next start."""
        self._write("again", "")

    def say_over(self, others_end_within_s: float) -> None:
        """Have the script end the others after some seconds."""
        self._write("over", f"{others_end_within_s:.0f}\n")

    def say_cut_off(self) -> None:
        """Have the script put the job back as soon as it reaches the engine."""
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
