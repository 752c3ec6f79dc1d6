"""The local engine. Each run has a supervisor, which outlives the page; below it, torchrun and the ranks."""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from pathlib import Path

from trainers.contract import status as status_file
from trainers.contract.config import Config, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import LOCAL, NOTHING_SAVED_HINT, RESUME_HINT, Status, StatusError
from trainers.contract.tickets import Grant
from trainers.engines.base import (
    HANDSHAKE_S,
    SUPERVISOR_LOG,
    Capacity,
    Description,
    Engine,
    Launch,
    Preparation,
    StartError,
    last_log_line,
    status_on,
)
from trainers.engines.local import script_process, stopping, torchrun
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.warm_pool import StartRequest, WarmPool
from trainers.files.plain_files import REPOSITORY, open_to_append
from trainers.machine import cuda_environment, environment, host, nvml
from trainers.machine.processes import ProcessTree

HANDSHAKE_POLL_S = 0.01


class LocalLaunch(Launch):
    """The supervisor process of one start."""

    def __init__(self, run: RunDirectory, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._run = run

    def wait_until_owned(self) -> None:
        """Wait for the supervisor's first status, written when it holds the lock."""
        deadline = time.monotonic() + HANDSHAKE_S
        while _recorded_pid(self._run) != self.process.pid:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                reason = last_log_line(self._run) or "no answer"
                raise StartError(f"run {self._run.run_id} could not be started: {reason}")
            time.sleep(HANDSHAKE_POLL_S)

    def wait_for_end(self) -> None:
        """Wait for the child process, which would otherwise remain as a zombie."""
        self.process.wait()


class LocalEngine(Engine):
    """Runs on this machine.

    Args:
        warm_pool: Keeps a process with torch ready; None: every run starts cold.
    """

    name = LOCAL
    is_this_machine = True

    def __init__(self, warm_pool: WarmPool | None = None) -> None:
        self._warm_pool = warm_pool
        self.preparation = warm_pool or Preparation()

    def capacity(self, config: Config | None = None) -> Capacity:
        """Return the GPUs that a job started here would see, the cores and the memory."""
        del config  # there is only this machine
        gpus = nvml.visible_gpus()
        num_undivided = sum(not gpu.is_part for gpu in gpus)
        handles = [gpu.handle for gpu in gpus if gpu.handle is not None]
        readings = [nvml.read_gpu(handle) for handle in handles]
        free_bytes = [
            reading.memory_free_bytes for reading in readings if reading.memory_free_bytes is not None
        ]
        # If NVML does not list the instances of a GPU in MIG mode, a run gets less memory than NVML reports.
        total_bytes = [
            None if nvml.is_divided(handle) else reading.memory_total_bytes
            for handle, reading in zip(handles, readings, strict=True)
        ]
        return Capacity(
            num_nodes=1,
            num_gpus=len(gpus),
            max_gpus_per_run=None if num_undivided == len(gpus) else max(1, num_undivided),
            num_cores=host.num_cores(),
            gpu_names=tuple(reading.name or "GPU" for reading in readings),
            gpu_memory_bytes=min(
                (num_bytes for num_bytes in total_bytes if num_bytes is not None), default=None
            ),
            gpu_capability=min(
                (
                    capability
                    for capability in map(nvml.compute_capability, handles)
                    if capability is not None
                ),
                default=None,
            ),
            gpu_free_bytes=tuple(free_bytes),
            memory_bytes=host.memory_bytes()[1],
            cpu_has_bf16=host.has_bf16(),
        )

    def check(self, config: Config) -> list[Problem]:
        """Return the problems of a configuration on one machine. The plan checks the number of ranks."""
        if config.num_nodes == 1:
            return []
        return [
            Problem(field="num_nodes", value=config.num_nodes, allowed="1: this page trains on one machine")
        ]

    def start(self, run: RunDirectory, resume_step: int | None = None, grant: Grant | None = None) -> Launch:
        """Start the supervisor of a run."""
        assert grant is not None, "a run on this machine starts only with granted resources"
        return LocalLaunch(run, self.start_supervisor(run, resume_step, grant))

    def start_supervisor(
        self, run: RunDirectory, resume_step: int | None, grant: Grant
    ) -> subprocess.Popen[bytes]:
        """Start a run's supervisor, which sees only the granted GPUs.

        If a warm supervisor is ready, it supervises the run.
        """
        run_dir = str(run.path.resolve())
        gpu_variables = cuda_environment.only(
            gpu.uuid for gpu in grant.gpus
        )  # none on the CPU: all are hidden
        request = StartRequest(
            run_dir=run_dir, resume_step=resume_step, ticket=grant.token, environment=gpu_variables
        )
        if self._warm_pool is not None and not run.read_config().is_script:
            supervisor = self._warm_pool.take(request)
            if supervisor is not None:
                return supervisor
        command = ["trainers.engines.local.supervisor", run_dir, "--ticket", grant.token]
        if resume_step is not None:
            command += ["--resume", str(resume_step)]
        run.logs.mkdir(exist_ok=True)
        variables = environment.for_a_child(gpu_variables, keep=environment.FOR_NOTIFYING)
        with os.fdopen(open_to_append(run.logs / SUPERVISOR_LOG), "ab") as log:
            return torchrun.start_module(command, log, variables)

    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        """Return `is_alive`: True if a process holds the run's lock. A pid could have been reused."""
        del status, is_queued
        return Description(is_alive=run.is_locked())

    def stop(self, run: RunDirectory, status: Status, *, save: bool, reason: str = "") -> str:
        """End a run. If its folder is not writable, a stop without saving sends a signal."""
        try:
            command_id = super().stop(run, status, save=save, reason=reason)
        except OSError:
            supervisor = None if save else stopping.supervisor_of(run, status)
            if supervisor is None:
                raise
            supervisor.terminate()
            return ""
        stopping.watch_for_stop(
            self,
            run,
            partial(stopping.supervisor_progress, run),
            lambda status: self._end(run, status, stopping.UNRESPONSIVE_MESSAGE),
            stopping.UNRESPONSIVE_AFTER_S,
        )
        return command_id

    def kill(self, run: RunDirectory, status: Status) -> None:
        """Kill the supervisor and its descendants, then write the final events in its place."""
        self._end(run, status, stopping.KILLED_MESSAGE)

    def _end(self, run: RunDirectory, status: Status, message: str) -> None:
        if (supervisor := stopping.supervisor_of(run, status)) is None:
            return
        ProcessTree(supervisor.pid).kill()
        if status_on(self, run).state != "lost":
            return  # the run recorded its end itself
        hint = RESUME_HINT if run.list_checkpoints() else NOTHING_SAVED_HINT
        cause = Cause(code="stop_forced", message=message, hint=hint)
        stopping.write_forced_end(run, status, message, cause)

    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        """Return the literal torchrun command, with this interpreter's torchrun, for the project's folder."""
        program = [_relative_to_project(part) for part in torchrun.torchrun_program()]
        if config.is_script:
            return script_process.script_command(config, str(run_dir), program)
        return torchrun.torchrun_command(config, run_dir, resume_step, program)


def _relative_to_project(path: str) -> str:
    prefix = f"{REPOSITORY}{os.sep}"
    return path.removeprefix(prefix) if os.sep in path else path


def _recorded_pid(run: RunDirectory) -> int | None:
    """Return the pid in the status file, even if that process has ended."""
    try:
        recorded = status_file.read(run.status)
    except StatusError:
        return None
    return None if recorded is None else recorded.pid
