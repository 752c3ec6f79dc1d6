"""Starts torchrun, cold or warm, and the temporary folder of its ranks."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.process
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines import heartbeats
from trainers.engines.heartbeats import Board
from trainers.engines.local import fork_server, sandbox, script_process, torchrun, warm_pool
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
from trainers.machine import cuda_environment, environment, processes, threads

VARIABLE = "TRAINERS_TEMP"
_PREFIX = "ddp-ranks-"


@contextlib.contextmanager
def folder_for_ranks(num_workers: int) -> Iterator[None]:
    """Create a temporary folder for the ranks, name it in the environment, and remove it at the end.

    Runs without loader workers have none. The folder is locked while in use, so that the next supervisor can
    remove the folder of a killed one.
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
    """Use the run's folder for `multiprocessing` in this process and the processes that it forks."""
    folder = os.environ.get(VARIABLE, "")
    if folder and os.path.isdir(folder):  # noqa: PTH112
        _multiprocessing_config()["tempdir"] = tempfile.mkdtemp(prefix="r", dir=folder)


def remove_own() -> None:
    """Remove the `multiprocessing` folder of this process, if any. `os._exit` does not."""
    if (folder := _multiprocessing_config().get("tempdir")) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _multiprocessing_config() -> dict[str, str]:
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


# In the run's log folder: the output of torchrun, and a folder with each rank's error file.
LOG = "torchrun.log"
DETAILS = "torchrun"


@dataclass(frozen=True, kw_only=True)
class TorchrunProcess:
    """A running torchrun.

    Attributes:
        details: Its folder with each rank's error file.
        ranks: Its ranks, to be watched; None if this system cannot hold their heartbeats.
    """

    process: subprocess.Popen[bytes]
    details: Path
    ranks: Ranks | None


def start(
    run: RunDirectory, config: Config, resume_step: int | None, commands_offset: int
) -> TorchrunProcess:
    """Start torchrun for a run.

    Args:
        commands_offset: Offset in `commands.jsonl` from which the ranks read.

    Raises:
        OSError: If it cannot be started.
    """
    run.logs.mkdir(exist_ok=True)
    log, details = run.logs / LOG, run.logs / DETAILS
    is_confined = config.is_script and sandbox.is_confined(run)
    # In a sandbox, process ids are others than here, and no memory file of this process can be opened.
    board = None if is_confined else board_for(config)
    meeting = sandbox.rendezvous(run, details) if is_confined else _rendezvous_environment(details)
    variables = {**meeting, COMMANDS_OFFSET: str(commands_offset)}
    if config.is_script:
        process = script_process.launch_script(run, config, log, details, _with_board(variables, board))
    else:
        command = worker_arguments(config, run.path, resume_step)
        process = launch(command, log, details, board, variables)
    return TorchrunProcess(
        process=process, details=details, ranks=None if board is None else LocalRanks(run, board)
    )


def board_for(config: Config) -> Board | None:
    """Create the heartbeats of a run's ranks; None if this system cannot hold them."""
    return Board(config.world_size) if heartbeats.can_be_watched() else None


class WarmTorchrun:
    """A torchrun whose ranks have imported everything and wait for a run.

    Args:
        folder: For its logs until a run is assigned; created here.
    """

    def __init__(self, folder: Path, num_ranks: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.num_ranks = num_ranks
        self._folder = folder
        self._board = Board(num_ranks)
        self._pipes = Pipes(num_ranks)
        command = torchrun_arguments(num_ranks, "trainers.warm.warm_worker")
        variables = {**_rendezvous_environment(folder / DETAILS), warm_pool.ADDRESSES: self._pipes.addresses}
        self.process = launch(command, folder / LOG, folder / DETAILS, self._board, variables)

    @property
    def is_ready(self) -> bool:
        """True if every rank waits for a run."""
        beats = [self._board.read(rank) for rank in range(self.num_ranks)]
        return all(beat is not None and beat.doing == heartbeats.STANDING_BY for beat in beats)

    @property
    def is_complete(self) -> bool:
        """True if torchrun and every rank that has started are alive. Ranks may still be importing."""
        beats = [self._board.read(rank) for rank in range(self.num_ranks)]
        return self.process.poll() is None and all(
            beat is None or processes.is_alive(beat.pid) for beat in beats
        )

    def begin(self, run: RunDirectory, resume_step: int | None, commands_offset: int) -> TorchrunProcess:
        """Assign a run.

        Raises:
            OSError: If the log cannot be moved to the run.
        """
        run.logs.mkdir(exist_ok=True)
        # A rename on the same file system: torchrun keeps writing to the open file.
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
        """Remove the folder of an ended torchrun, after moving its error files to the run, if any."""
        if run is not None and run.logs.is_dir():
            shutil.rmtree(run.logs / DETAILS, ignore_errors=True)
            if (self._folder / DETAILS).is_dir():
                shutil.move(self._folder / DETAILS, run.logs / DETAILS)
        shutil.rmtree(self._folder, ignore_errors=True)


def _rendezvous_environment(details: Path) -> dict[str, str]:
    """Return the environment for the rendezvous of torchrun and its ranks on this machine."""
    # Memory files end with this process, so nothing needs to be removed.
    return {**torchrun_options(details), **RendezvousFiles().environment}


def _with_board(variables: Mapping[str, str], board: Board | None) -> dict[str, str]:
    """Return the environment of ranks that have a supervisor, and find its heartbeats there."""
    address = {} if board is None else {heartbeats.ADDRESS: board.address}
    return {SUPERVISED: "1", **variables, **address}


def launch(
    arguments: Sequence[str], log: Path, details: Path, board: Board | None, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start torchrun; the kernel kills it when this process ends.

    Args:
        variables: Added to its environment: the rendezvous, and settings for the ranks.

    Raises:
        OSError: If it cannot be started.
    """
    for left in (details, log):  # in a copied run they may be links to other places
        plain_files.remove(left)
    parent = str(os.getpid())
    if fork_server.can_fork():
        command = ["trainers.engines.local.fork_server", parent, *arguments]
    else:
        command = ["trainers.machine.lifeline", parent, *torchrun_program(), *arguments]
    with log.open("xb") as output:
        return torchrun.start_module(command, output, environment.for_a_child(_with_board(variables, board)))
