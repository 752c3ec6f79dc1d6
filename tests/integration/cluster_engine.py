"""A second engine for tests: jobs of a fictitious cluster, identified by name.

It uses no supervisor, no lock and no PID in `status.json`: like Slurm, the "cluster" determines by the name
of the job whether a run is alive. torchrun and its ranks are real.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil

from tests.harness import REPOSITORY, torchrun_that_forks
from trainers.contract import events, tickets
from trainers.contract.config import Config, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.contract.tickets import Grant
from trainers.engines.base import Capacity, Description, Engine, Launch
from trainers.engines.local import torchrun

POLL_S = 0.1
ENDED_BY_FORCE_AFTER_S = 60.0


class Job(Launch):
    """One job: torchrun, and a thread that keeps the run's status."""

    def __init__(self, name: str, run: RunDirectory, command: list[str]) -> None:
        self._run = run
        self._offset = run.events.stat().st_size if run.events.exists() else 0
        self._status = Status(
            state="starting", engine=ClusterEngine.name, handle=name, started_unix_s=time.time()
        )
        self._save()
        run.logs.mkdir(exist_ok=True)
        with (run.logs / "torchrun.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self.kill_at, self.is_forgotten = float("inf"), False
        self.ends_as: events.State = "failed"
        self.follower = threading.Thread(target=self._follow, name=name, daemon=True)
        self.follower.start()

    def wait_until_owned(self) -> None:
        """Return immediately: the status names this job from the beginning."""

    def wait_for_end(self) -> None:
        """Wait until the final status is written."""
        self.follower.join()

    def kill(self) -> None:
        """Kill torchrun and wait until its ranks have died with it: rank 0 holds the run's lock."""
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            psutil.wait_procs(ranks, ENDED_BY_FORCE_AFTER_S)

    def _follow(self) -> None:
        while self.process.poll() is None and not self.is_forgotten:
            self._read_events()
            if time.monotonic() > self.kill_at:
                self.kill()
            self._save()
            time.sleep(POLL_S)
        self.process.wait()
        if self.is_forgotten:
            return
        self._read_events()
        if self._status.state not in ("stopped", "finished"):
            error = f"The job ended with exit code {self.process.returncode}."
            self._status = replace(self._status, state=self.ends_as, error=error)
        self._status = replace(self._status, exit_code=self.process.returncode, ended_unix_s=time.time())
        self._save()

    def _read_events(self) -> None:
        found, self._offset = events.read(self._run.events, self._offset, ("state",))
        if found:
            self._status = replace(self._status, state=found[-1]["state"])

    def _save(self) -> None:
        self._run.write_status(replace(self._status, last_seen_unix_s=time.time()))


class ClusterEngine(Engine):
    """The engine that holds all jobs of the cluster, by name."""

    name = "made_up_cluster"

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def capacity(self, config: Config | None = None) -> Capacity:
        return Capacity(num_nodes=1, num_gpus=0, num_cores=2)

    def check(self, config: Config) -> list[Problem]:
        one = Problem(field="num_nodes", value=config.num_nodes, allowed="1: it has one node")
        return [] if config.num_nodes == 1 else [one]

    def start(self, run: RunDirectory, resume_step: int | None = None, grant: Grant | None = None) -> Launch:
        lock = run.acquire_lock()
        try:
            tickets.claim_ticket(run, None if grant is None else grant.token)
            name = f"job {len(self._jobs) + 1}"
            worker = torchrun.worker_arguments(run.read_config(), run.path, resume_step)
            command = torchrun_that_forks(worker)
        finally:
            os.close(lock)
        self._jobs[name] = Job(name, run, command)
        tickets.close_ticket(run)
        return self._jobs[name]

    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        job = self._jobs.get(str(status.handle))
        is_alive = job is not None and job.follower.is_alive() and not job.is_forgotten
        return Description(is_alive=is_alive)

    def stop(self, run: RunDirectory, status: Status, *, save: bool, why: str = "") -> str:
        command_id = super().stop(run, status, save=save, why=why)
        self._job_of(run).kill_at = time.monotonic() + ENDED_BY_FORCE_AFTER_S
        return command_id

    def kill(self, run: RunDirectory, status: Status) -> None:
        job = self._job_of(run)
        job.ends_as = "stopped"
        job.kill()
        job.wait_for_end()

    def command(self, config: Config, run_dir: Path | str, resume_step: int | None = None) -> list[str]:
        return torchrun.torchrun_command(config, run_dir, resume_step)

    def forget(self, run: RunDirectory) -> None:
        """Lose a job, as a cluster does when a node is lost."""
        job = self._job_of(run)
        job.is_forgotten = True
        job.kill()
        job.wait_for_end()

    def _job_of(self, run: RunDirectory) -> Job:
        return next(job for job in self._jobs.values() if job._run.path == run.path)
