"""torchrun's command line, environment and output.

On one machine, torchrun and its ranks rendezvous through files that only this user can open. `--standalone`
would instead open a store on all interfaces, which accepts any client and unpickles what it receives.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment, facilities
from trainers.machine.host import MemoryFile
from trainers.watch.settings import STORE

# Offset in `commands.jsonl` from which the ranks read: commands that arrive during the start are theirs.
COMMANDS_OFFSET = "TRAINERS_COMMANDS_OFFSET"
# Environment variable that is set for ranks from the warm pool.
IS_WARM = "TRAINERS_WARM"

# Without this option, torchrun opens a TCP store for its ranks on all interfaces.
_NO_PORT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# Send keep-alives rarely: the file store only grows, and on one machine no other node waits for them.
RENDEZVOUS = ("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file,keep_alive_interval=3600")

# torchrun's options for its log folder and its start method, as environment variables. Another start method
# than "fork" turns forking off.
LOG_DIR, START_METHOD = "PET_LOG_DIR", "PET_START_METHOD"

_SUMMARY_RANK = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(?P<code>-?\d+)"
)

_EXIT_LINE = re.compile(r"^rank (?P<rank>\d+) ended with exit code (?P<code>-?\d+)$", re.MULTILINE)
_FIRST_FAILURE = "Root Cause (first observed failure):"


def can_fork() -> bool:
    """True if ranks can be forked: on Linux, unless the environment sets another start method."""
    return facilities.are_available() and os.environ.get(START_METHOD, "fork") == "fork"


def torchrun_program() -> list[str]:
    """Return the command prefix that starts this interpreter's torchrun."""
    local_program = Path(sys.executable).with_name("torchrun")
    return [str(local_program)] if local_program.exists() else [sys.executable, "-m", "torch.distributed.run"]


def torchrun_arguments(num_ranks: int | str, module: str, *arguments: str) -> list[str]:
    """Return torchrun's arguments to start a module on ranks of this machine."""
    return [*RENDEZVOUS, "--nproc-per-node", str(num_ranks), "-m", module, *arguments]


def literal_command(arguments: list[str], program: Sequence[str] = ("torchrun",)) -> list[str]:
    """Return the equivalent shell command."""
    return ["env", *(f"{name}={value}" for name, value in _NO_PORT.items()), *program, *arguments]


def torchrun_command(
    config: Config,
    run_dir: Path | str,
    resume_step: int | None = None,
    program: Sequence[str] = ("torchrun",),
) -> list[str]:
    """Return the literal command that trains a new run in `run_dir`, or resumes the existing one."""
    arguments = worker_arguments(config, run_dir, resume_step)
    if resume_step is None:
        arguments += ["--config", json.dumps(config.changed())]
    return literal_command(arguments, program)


def worker_arguments(
    config: Config, run_dir: Path | str, resume_step: int | None = None, rendezvous_args: Sequence[str] = ()
) -> list[str]:
    """Return torchrun's arguments of the literal command.

    Args:
        rendezvous_args: torchrun's arguments for the rendezvous; empty: all ranks are on this machine.
    """
    resume = [] if resume_step is None else ["--resume", str(resume_step)]
    local_args = (*RENDEZVOUS, "--nproc-per-node", str(config.nproc_per_node))
    return [*(rendezvous_args or local_args), "-m", "trainers.worker", str(run_dir), *resume]


def shell_command(module: str, *arguments: str) -> str:
    """Return the shell command that starts a module on two ranks of this machine."""
    return shlex.join(literal_command(torchrun_arguments(2, module, *arguments)))


def start_module(
    command: Sequence[str], output: BinaryIO, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a module as a program of its own session, in the project's folder.

    Args:
        command: The module's name and its arguments.
        output: File for stdout and stderr.
        variables: Added to this process's environment without secrets.

    Raises:
        OSError: If it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-u", "-m", *command],
        cwd=REPOSITORY,
        env=environment.for_a_child(variables),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def torchrun_options(log_dir: Path) -> Mapping[str, str]:
    """Return options as environment variables, so that the arguments stay those of the literal command."""
    # Use loopback: on one machine, a host name that does not resolve (offline, VPN) must not matter.
    return {LOG_DIR: str(log_dir), "PET_LOCAL_ADDR": "127.0.0.1", **_NO_PORT}


def output_paths(run: RunDirectory, machine: int = 0) -> tuple[Path, Path]:
    """Return torchrun's log on a machine of a run, and its folder with each rank's error file."""
    name = f"torchrun_{machine}" if machine else "torchrun"
    return run.logs / f"{name}.log", run.logs / name


class JsonLine:
    """Base of a dataclass that is sent to the standard input of a process as one line of JSON."""

    def to_line(self) -> bytes:
        """Return the line."""
        return json.dumps(vars(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self | None:
        """Parse a line; None if it is incomplete, which means that the sender has exited."""
        return cls(**json.loads(line)) if line.endswith(b"\n") else None


class RendezvousFiles:
    """Memory files for the rendezvous of torchrun and its ranks. They exist until this process ends."""

    def __init__(self) -> None:
        self._agents, self._ranks = MemoryFile("rendezvous"), MemoryFile("store")

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables with the paths of the files."""
        return {"PET_RDZV_ENDPOINT": self._agents.address, STORE: self._ranks.address}

    def close(self) -> None:
        """Close the files."""
        self._agents.close()
        self._ranks.close()


def exit_line(rank: int, exit_code: int) -> str:
    """Return the log line for a rank's exit; ranks are counted per machine, from 0."""
    return f"rank {rank} ended with exit code {exit_code}"


def rank_exit_codes(output: str, first_rank: int = 0) -> dict[int, int]:
    """Return the exit code of each rank in torchrun's output; negative: a signal.

    Args:
        first_rank: Global rank of the first rank on the machine of this output. Log lines count local ranks
            from 0; the summary has global ranks.
    """
    summarized = {int(match["rank"]): int(match["code"]) for match in _SUMMARY_RANK.finditer(output)}
    logged = {first_rank + int(match["rank"]): int(match["code"]) for match in _EXIT_LINE.finditer(output)}
    return summarized | logged


def first_failed_rank(output: str) -> int | None:
    """Return the rank that the last summary names as the first failure."""
    _, separator, summary = output.rpartition(_FIRST_FAILURE)
    match = _SUMMARY_RANK.search(summary) if separator else None
    return None if match is None else int(match["rank"])
