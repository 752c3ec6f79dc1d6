"""The process of torchrun."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.process
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines import heartbeats
from trainers.engines.heartbeats import Board
from trainers.engines.local import fork_server, warm_pool
from trainers.engines.local.stacks import LocalRanks, Ranks
from trainers.engines.local.torchrun import (
    RendezvousFiles,
    torchrun_arguments,
    torchrun_options,
    torchrun_program,
    worker_arguments,
)
from trainers.engines.local.warm_pool import COMMANDS_OFFSET, IS_WARM, SUPERVISED, Order, Pipes
from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import cuda_environment, environment, processes, threads

VARIABLE = "TRAINERS_TEMP"
_PREFIX = "ddp-ranks-"


@contextlib.contextmanager
def folder_for_ranks(num_workers: int) -> Iterator[None]:
    """Name a folder in this process's environment, for the ranks; remove it at the end.

    Runs without loader workers have none. A lock shows that the folder is in use: what a killed supervisor
    left is removed by the next one.
    """
    if num_workers == 0:
        yield
        return
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.environ[VARIABLE] = str(folder)
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def use_folder() -> None:
    """Have `multiprocessing` of this process, and of those that it forks, use the run's folder."""
    folder = os.environ.get(VARIABLE, "")
    if folder and os.path.isdir(folder):  # noqa: PTH112
        _configuration()["tempdir"] = tempfile.mkdtemp(prefix="r", dir=folder)


def remove_own() -> None:
    """Remove the folder of this process's `multiprocessing`, if it has made one: `os._exit` does not."""
    if (folder := _configuration().get("tempdir")) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _configuration() -> dict[str, str]:
    found: dict[str, str] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined] # noqa: SLF001
    return found


def _sweep() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            if left.is_symlink() or left.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)


# In the folder of a run's logs: what torchrun and what it started first said, and the errors of each rank.
LOG = "torchrun.log"
DETAILS = "torchrun"


@dataclass(frozen=True, kw_only=True)
class TorchrunProcess:
    """A torchrun at work.

    Attributes:
        details: its folder with the errors of each rank.
        ranks: its ranks, to be watched; None where this system has nothing to hold their heartbeats.
    """

    process: subprocess.Popen[bytes]
    details: Path
    ranks: Ranks | None


def start(
    run: RunDirectory, config: Config, resume_step: int | None, commands_offset: int
) -> TorchrunProcess:
    """Start torchrun for a run.

    Args:
        commands_offset: from where in `commands.jsonl` the ranks read.

    Raises:
        OSError: when it cannot be started.
    """
    run.logs.mkdir(exist_ok=True)
    log, details = run.logs / LOG, run.logs / DETAILS
    board = board_for(config)
    command = worker_arguments(config, run.path, resume_step)
    variables = {**_on_one_machine(details), COMMANDS_OFFSET: str(commands_offset)}
    process = launch(command, log, details, board, variables)
    return TorchrunProcess(
        process=process, details=details, ranks=None if board is None else LocalRanks(run, board)
    )


def board_for(config: Config) -> Board | None:
    """Make the board for the heartbeats of a run's ranks; None where this system has nothing to hold it."""
    return Board(config.world_size) if heartbeats.can_be_watched() else None


class WarmTorchrun:
    """A torchrun whose ranks have imported everything and wait to hear which run is theirs.

    Args:
        folder: where its logs lie until then; it is made here.
    """

    def __init__(self, folder: Path, num_ranks: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.num_ranks = num_ranks
        self._folder = folder
        self._board = Board(num_ranks)
        self._pipes = Pipes(num_ranks)
        command = torchrun_arguments(num_ranks, "trainers.warm.warm_worker")
        variables = {**_on_one_machine(folder / DETAILS), warm_pool.ADDRESSES: self._pipes.addresses}
        self.process = launch(command, folder / LOG, folder / DETAILS, self._board, variables)

    @property
    def is_ready(self) -> bool:
        """Whether every rank waits by now."""
        beats = [self._board.read(rank) for rank in range(self.num_ranks)]
        return all(beat is not None and beat.doing == heartbeats.STANDING_BY for beat in beats)

    @property
    def is_complete(self) -> bool:
        """Whether torchrun lives, and every rank that has come so far."""
        beats = [self._board.read(rank) for rank in range(self.num_ranks)]
        return self.process.poll() is None and all(
            beat is None or processes.is_alive(beat.pid) for beat in beats
        )

    def begin(self, run: RunDirectory, resume_step: int | None, commands_offset: int) -> TorchrunProcess:
        """Give it a run.

        Raises:
            OSError: when its log cannot be brought to the run.
        """
        run.logs.mkdir(exist_ok=True)
        (self._folder / LOG).replace(run.logs / LOG)
        variables = {COMMANDS_OFFSET: str(commands_offset), IS_WARM: "1"}
        handed_on = (*cuda_environment.OF_A_RUN, VARIABLE, threads.FREE_CORES)
        variables |= {name: os.environ[name] for name in handed_on if name in os.environ}
        order = Order(run_dir=str(run.path), resume_step=resume_step, environment=variables)
        self._pipes.tell(order)
        return TorchrunProcess(
            process=self.process, details=self._folder / DETAILS, ranks=LocalRanks(run, self._board)
        )

    def put_away(self, run: RunDirectory | None) -> None:
        """Leave nothing of it behind, when it has ended; what it noted of errors goes to its run."""
        if run is not None and run.logs.is_dir():
            shutil.rmtree(run.logs / DETAILS, ignore_errors=True)
            if (self._folder / DETAILS).is_dir():
                shutil.move(self._folder / DETAILS, run.logs / DETAILS)
        shutil.rmtree(self._folder, ignore_errors=True)


def _on_one_machine(details: Path) -> dict[str, str]:
    """Return how torchrun and its ranks meet on this machine."""
    # What is in memory goes with this process, so nothing of it has to be tidied up.
    return {**torchrun_options(details), **RendezvousFiles().environment}


def launch(
    arguments: Sequence[str], log: Path, details: Path, board: Board | None, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start torchrun, which the kernel ends with this process.

    Args:
        variables: of its environment: how it and its ranks meet, and what the ranks are to do.

    Raises:
        OSError: when it cannot be started.
    """
    for left in (details, log):  # in a copied run they may be links to anywhere
        plain_files.remove(left)
    more = {SUPERVISED: "1", **variables}
    if board is not None:
        more[heartbeats.ADDRESS] = board.address
    lifeline = [sys.executable, "-m", "trainers.machine.lifeline", str(os.getpid())]
    forking = [sys.executable, "-u", "-m", "trainers.engines.local.fork_server", str(os.getpid())]
    program = forking if fork_server.can_fork() else [*lifeline, *torchrun_program()]
    with log.open("xb") as output:
        return subprocess.Popen(
            [*program, *arguments],
            cwd=REPOSITORY,
            env=environment.for_a_child(more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
