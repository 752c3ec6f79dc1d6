"""Starts torchrun, cold or warm, and the temporary folder of its ranks."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainers.contract import heartbeats
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines.heartbeats import HeartbeatMemory
from trainers.engines.local import fork_server, sandbox, script_process, torchrun
from trainers.engines.local.fork_server import TorchrunRequest
from trainers.engines.local.stacks import Ranks
from trainers.engines.local.torchrun import (
    COMMANDS_OFFSET,
    IS_WARM,
    LOG_DIR,
    RendezvousFiles,
    output_paths,
    torchrun_options,
    torchrun_program,
    worker_arguments,
)
from trainers.files import plain_files
from trainers.files.plain_files import REPOSITORY
from trainers.machine import environment, facilities
from trainers.machine.host import RUN_FOLDER
from trainers.watch.settings import SUPERVISED


@contextlib.contextmanager
def folder_for_ranks(num_workers: int) -> Iterator[None]:
    """Create a temporary folder for the ranks, set it in the environment, and remove it at the end. Without
    loader workers no folder is created, unless this system lacks in-memory files.
    """
    if num_workers == 0 and facilities.has_memory_files():
        yield
        return
    with plain_files.temporary_folder("ddp-ranks-") as folder:
        os.environ[RUN_FOLDER] = str(folder)
        try:
            yield
        finally:
            os.environ.pop(RUN_FOLDER, None)


def use_folder() -> None:
    """Use the run's folder for `multiprocessing` in this process and the processes that it forks."""
    folder = os.environ.get(RUN_FOLDER, "")
    if folder and os.path.isdir(folder):  # noqa: PTH112
        _multiprocessing_config()["tempdir"] = tempfile.mkdtemp(prefix="r", dir=folder)


def remove_own_folder() -> None:
    """Remove the `multiprocessing` folder of this process, if any. `os._exit` does not."""
    if (folder := _multiprocessing_config().get("tempdir")) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _multiprocessing_config() -> dict[str, str]:
    process_config: dict[str, str] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined] # noqa: SLF001
    return process_config


def start(
    run: RunDirectory,
    config: Config,
    resume_step: int | None,
    commands_offset: int,
    template: Template | None = None,
) -> tuple[subprocess.Popen[bytes], Ranks | None]:
    """Start torchrun for a run; return the process and its ranks for the hang watch (None in a sandbox).

    Args:
        commands_offset: Offset in `commands.jsonl` from which the ranks read.
        template: Becomes torchrun, if it is alive; it is not used for scripts.

    Raises:
        OSError: If it cannot be started.
    """
    is_confined = config.is_script and sandbox.is_confined(run)
    # In a sandbox, process ids differ from those outside, and memory files of this process cannot be opened.
    heartbeat_memory = None if is_confined else HeartbeatMemory(config.world_size)
    files = sandbox.rendezvous_variables(run) if is_confined else RendezvousFiles().environment
    # Memory files end with this process, so nothing needs to be removed.
    variables = {**torchrun_options(output_paths(run)[1]), **files, COMMANDS_OFFSET: str(commands_offset)}
    process = start_ranks(run, config, resume_step, heartbeat_memory, variables, template=template)
    return process, None if heartbeat_memory is None else Ranks(run, heartbeat_memory)


def start_ranks(
    run: RunDirectory,
    config: Config,
    resume_step: int | None,
    heartbeat_memory: HeartbeatMemory | None,
    variables: Mapping[str, str],
    *,
    rendezvous_args: Sequence[str] = (),
    machine: int = 0,
    template: Template | None = None,
) -> subprocess.Popen[bytes]:
    """Start torchrun with a run's ranks, or its script's.

    Args:
        variables: Added to its environment: the rendezvous, and settings for the ranks.
        rendezvous_args: torchrun's arguments for the rendezvous; empty: all ranks are on this machine.
        machine: Number of this machine, whose torchrun has its own log.
        template: Becomes torchrun, if it is alive; it is not used for scripts.

    Raises:
        OSError: If it cannot be started.
    """
    run.logs.mkdir(exist_ok=True)
    log, details = output_paths(run, machine)
    address = {} if heartbeat_memory is None else {heartbeats.ADDRESS: heartbeat_memory.address}
    variables = {SUPERVISED: "1", **variables, LOG_DIR: str(details), **address}
    if config.is_script:
        return script_process.launch_script(
            run,
            config,
            log,
            details,
            variables,
            resume_step,
            rendezvous_args=rendezvous_args,
            is_first_machine=machine == 0,
        )
    return launch(
        worker_arguments(config, run.path, resume_step, rendezvous_args), log, details, variables, template
    )


class Template:
    """A fork server that has been started before its run is known. It ends with this process."""

    def __init__(self) -> None:
        command = [sys.executable, "-u", "-m", fork_server.__name__, str(os.getpid())]
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment.for_a_child(),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def run(
        self, arguments: Sequence[str], log: Path, variables: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | None:
        """Run torchrun in this process; return the process, or None if it has ended."""
        assert self.process.stdin is not None, "it runs torchrun once"
        request = TorchrunRequest(arguments=arguments, environment=variables, log=str(log))
        try:
            self.process.stdin.write(request.to_line())
            self.process.stdin.close()
        except OSError:
            return None
        return self.process if self.process.poll() is None else None


def launch(
    arguments: Sequence[str],
    log: Path,
    details: Path,
    variables: Mapping[str, str],
    template: Template | None = None,
) -> subprocess.Popen[bytes]:
    """Start torchrun; the kernel kills it when this process ends.

    Args:
        variables: Added to its environment: the rendezvous, and settings for the ranks.
        template: Becomes torchrun, if it is alive.

    Raises:
        OSError: If it cannot be started.
    """
    for stale_path in (details, log):  # in a copied run they may be links to other places
        plain_files.remove(stale_path)
    variables = environment.for_a_child(variables)
    if template is not None:
        process = template.run(arguments, log, {**variables, IS_WARM: "1"})
        if process is not None:
            return process
        plain_files.remove(log)
    parent = str(os.getpid())
    if torchrun.can_fork():
        command = [fork_server.__name__, parent, *arguments]
    else:
        command = ["trainers.machine.lifeline", parent, *torchrun_program(), *arguments]
    with log.open("xb") as output:
        return torchrun.start_module(command, output, variables)
