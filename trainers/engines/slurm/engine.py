"""The Slurm engine: Slurm starts the job of a run; the run's folder records its state."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from trainers.contract import events, tickets
from trainers.contract import status as status_file
from trainers.contract.config import Config, Problem
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, Status, StatusError
from trainers.contract.tickets import Grant
from trainers.engines.base import (
    JOB_SCRIPT,
    Capacity,
    Description,
    Engine,
    EngineJob,
    EngineQueue,
    Launch,
    script_problems,
)
from trainers.engines.local import stopping
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.engines.slurm import client, endings, script, site
from trainers.engines.slurm.client import QueuePlaces, Slurm
from trainers.engines.slurm.endings import SlurmError
from trainers.engines.slurm.where import PartitionPlacement
from trainers.machine.environment import hour_and_minute, now_unix_s

NAME = "slurm"
POLL_S = 0.5
KILL_LIMIT_S = 60.0
EARLIER_JOB_LIMIT_S = 30.0
UNRESPONSIVE_MESSAGE = "Node 0 of this run did not react to Stop, so the job was cancelled."
SUSPENDED_MESSAGE = "Slurm had suspended this run, which did not react to Stop, so the job was cancelled."
# Job states in which the processes are suspended, as text next to the run's state.
_SUSPENDED_STATES = {"SUSPENDED": "suspended by Slurm", "STOPPED": "suspended by a signal"}


class SlurmLaunch(Launch):
    """A submitted job."""

    def __init__(self, slurm: Slurm, job_id: str) -> None:
        self._slurm = slurm
        self.job_id = self.location = job_id

    def wait_until_owned(self) -> None:
        """Return immediately: the status contains the job ID as soon as the job is submitted."""

    def wait_for_end(self) -> None:
        """Wait until the controller reports that the job has ended; keep waiting while it does not answer."""
        while is_live(self._slurm, self.job_id) is not False:
            time.sleep(POLL_S)


class SlurmEngine(Engine):
    """One cluster, with the permissions of the current user."""

    name = NAME

    def __init__(self, slurm: Slurm | None = None, *, site_file: Path | None = None) -> None:
        self._slurm = slurm or Slurm()
        self._site_file = site_file
        self._site = site.read(site_file)
        self._placement = PartitionPlacement(self._slurm.partitions, self._site)

    def capacity(self, config: Config | None = None) -> Capacity:
        """Return the capacity of the configuration's partition, or of the default one.

        Raises:
            SlurmError: If the controller has not answered yet.
        """
        return self._placement.capacity(config or Config())

    def check(self, config: Config) -> list[Problem]:
        """Return the values that the cluster or the site would reject. The current load does not matter."""
        return [*script_problems(config), *self._placement.problems(config)]

    def script(self, config: Config, run_dir: Path, resume_step: int | None = None) -> str:
        """Return the batch script that would be submitted."""
        applied, gres = self._site.apply(config), self._placement.gres(config)
        return script.batch_script(
            applied, run_dir, resume_step, gres=gres, max_restarts=self._site.restarts.maximum
        )

    def start(
        self, run: RunDirectory, resume_step: int | None = None, grant: Grant | None = None
    ) -> SlurmLaunch:
        """Submit a run, after Slurm has ended its earlier job."""
        self._end_earlier_job(run)
        with run.owned():
            tickets.claim_ticket(run, None if grant is None else grant.token)
            text = self.script(run.read_config(), run.path.resolve(), resume_step)
            run.logs.mkdir(exist_ok=True)
            (run.path / JOB_SCRIPT).write_text(text, encoding="utf-8")
            job_id = self._slurm.submit(text)
            handle = {"job_id": job_id}
            waiting = Status(state="queued", engine=NAME, handle=handle, last_seen_unix_s=now_unix_s())
            run.write_status(waiting)
            tickets.close_ticket(run)
            return SlurmLaunch(self._slurm, job_id)

    def stop(self, run: RunDirectory, status: Status, *, save: bool, reason: str = "") -> str:
        """End a run: cancel a waiting job; send a command to a running job."""
        self._slurm.forget()  # the job may have just started
        if self.describe(run, status).is_waiting:
            self._end(run, status, endings.CANCELLED, signal=None)
            return ""
        command_id = super().stop(run, status, save=save, reason=reason)

        def end(status: Status) -> None:
            is_suspended = self.describe(run, status).detail is not None
            self._end(run, status, SUSPENDED_MESSAGE if is_suspended else UNRESPONSIVE_MESSAGE, signal="KILL")

        restarts.watch_for_stop(self, run, end)
        return command_id

    def kill(self, run: RunDirectory, status: Status) -> None:
        """Kill all processes of a run's job, then write the final events in their place."""
        if job_id_of(status.handle) is not None:
            self._end(run, status, stopping.KILLED_MESSAGE, signal="KILL")

    def describe(self, run: RunDirectory, status: Status, *, is_queued: bool = False) -> Description:
        """Return the controller's report about a run's job, and since when it has not answered."""
        job_id = job_id_of(status.handle)
        if job_id is None:
            return Description()
        if status.state == "lost":
            return Description(end=self._end_of(run, status, job_id))
        is_gone = status.state in events.LIVE_STATES and is_live(self._slurm, job_id) is False
        if is_gone and _has_changed_since(run, self._slurm.jobs_answered_unix_s):
            # another page or a terminal may have submitted the job since the last answer
            self._slurm.forget()
        job, error = None, None
        try:
            job = self._slurm.find(job_id)
        except SlurmError as caught:
            error = caught
        silent_s = self._slurm.jobs_silent_since_unix_s
        since = "" if silent_s is None else f" since {hour_and_minute(silent_s)}"
        silence = f"Slurm has not answered{since}. This page shows the state from the run's own files."
        is_waiting = job is not None and job.is_waiting
        description = Description(
            is_alive=None if error is not None else job is not None and not job.has_ended,
            is_waiting=is_waiting,
            silence=silence if since else None,
            detail=None if job is None else _SUSPENDED_STATES.get(job.slurm_state),
            end=self._end_of(run, status, job_id) if status.state == "stopped" and not is_waiting else None,
        )
        if not is_queued or (job is None and error is None):
            return description
        unknown_reason = f"The reason for waiting is unknown{since}, because Slurm does not answer: {error}."
        return replace(
            description,
            reason=unknown_reason if job is None else client.reason_text(job.reason),
            place=f"in the cluster's queue: {self._place_of(job_id)}",
            # The interval between requests for the estimate grows.
            starts_unix_s=self._slurm.starts_at(job_id),
        )

    def _end_of(self, run: RunDirectory, status: Status, job_id: str) -> Status:
        """Complete a status without a recorded end, or after SIGTERM, from the end of the job."""
        if status.state == "stopped" and not _needs_cause(run, status):
            return status
        try:
            end = self._slurm.end_of(job_id)
        except SlurmError as error:
            if status.state == "stopped":
                return status
            return replace(
                status,
                error=f"It is unknown how job {job_id} ended, because Slurm does not answer ({error}).",
            )
        if end is not None and end.name not in ("", script.job_name(run.path)):
            ending = endings.unknown_ending(job_id, end.name)
        else:
            ending = endings.unknown_ending(job_id) if end is None else endings.run_ending(end, status, run)
        if status.state == "stopped" and ending.state != "stopped":
            return status  # keep a state that the run itself has recorded
        return endings.settle(run, status, ending, None if end is None else end.ended_unix_s)

    def _place_of(self, job_id: str) -> str:
        """Return the job ID, and its place among the jobs that wait for the same partition."""
        with contextlib.suppress(SlurmError):
            place, num_waiting = self._slurm.queue_places().get(job_id, (None, None))
            if place is not None:
                return f"job {job_id}, place {place} of {num_waiting}"
        return f"job {job_id}"

    def queue(self) -> EngineQueue:
        """Return the current user's jobs; the last known ones while the controller does not answer."""
        jobs: list[EngineJob] = []
        places: QueuePlaces = {}
        with contextlib.suppress(SlurmError):
            jobs = self._slurm.list_jobs()
            places = self._slurm.queue_places()
        return EngineQueue(
            name="Slurm",
            jobs=tuple(_with_place(job, places) for job in jobs),
            silent_since_unix_s=self._slurm.jobs_silent_since_unix_s,
        )

    def _end_earlier_job(self, run: RunDirectory) -> None:
        """Cancel the run's last job and wait for its end, so that no two jobs of a run start."""
        recorded = None
        with contextlib.suppress(StatusError):
            recorded = status_file.read(run.status)
        job_id = None if recorded is None or recorded.engine != NAME else job_id_of(recorded.handle)
        if recorded is None or job_id is None:
            return
        self._slurm.forget()
        job = self._slurm.find(job_id, refresh=True)  # raises if Slurm does not answer
        if job is None or job.has_ended:
            return
        if job.name != script.job_name(run.path):
            return  # the run was copied from another cluster: on this one the ID belongs to another job
        if recorded.state in events.LIVE_STATES:
            raise ValueError(f"run {run.run_id} has job {job_id} in Slurm, which has not ended")
        self._slurm.cancel(job_id)
        if not self._has_ended_within(EARLIER_JOB_LIMIT_S, job_id):
            raise SlurmError(
                f"job {job_id}, the last one of this run, was cancelled and Slurm has not ended it on "
                f"{job.nodes or 'its nodes'} yet: try again later"
            )

    def _end(self, run: RunDirectory, status: Status, message: str, *, signal: str | None) -> None:
        """Cancel a job, wait until no process remains, and write the run's final events and status."""
        job_id = job_id_of(status.handle)
        assert job_id is not None
        self._slurm.cancel(job_id, signal)
        if not self._has_ended_within(KILL_LIMIT_S, job_id):
            raise SlurmError(f"job {job_id} has not ended {KILL_LIMIT_S:.0f} s after it was cancelled")
        stopping.write_forced_end(run, status, message)

    def _has_ended_within(self, limit_s: float, job_id: str) -> bool:
        """Wait until a job has ended; False if it has not within this time."""
        deadline = time.monotonic() + limit_s
        while is_live(self._slurm, job_id) is not False:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def _with_place(job: EngineJob, places: QueuePlaces) -> EngineJob:
    place, num_waiting = places.get(job.number, (None, None)) if job.is_waiting else (None, None)
    return replace(job, place=place, num_waiting=num_waiting)


def _has_changed_since(run: RunDirectory, unix_s: float | None) -> bool:
    """True if the run's status was written after this time, or the time is unknown."""
    with contextlib.suppress(OSError):
        return unix_s is None or run.status.stat().st_mtime > unix_s
    return False


def _needs_cause(run: RunDirectory, status: Status) -> bool:
    """True if SIGTERM ended the run and its status does not contain the cause yet."""
    if status.error is not None:
        return False
    starts = NodesFolder.list_starts(run)
    return bool(starts) and starts[-1].read(restarts.SIGTERM_RECEIVED) is not None


def job_id_of(handle: Handle) -> str | None:
    """Return the job ID in a handle, or None."""
    job_id = handle.get("job_id") if isinstance(handle, dict) else None
    return job_id if isinstance(job_id, str) and job_id.isdecimal() else None


def is_live(slurm: Slurm, job_id: str) -> bool | None:
    """True if a job waits or runs; None if the controller does not answer."""
    try:
        job = slurm.find(job_id)
    except SlurmError:
        return None
    return job is not None and not job.has_ended
