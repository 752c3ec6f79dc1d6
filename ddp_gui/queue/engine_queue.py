"""The queue of the engine itself, such as Slurm's: the person's jobs there, with the runs of this page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddp_gui.runs.runs import RunStore
from trainers.contract import status as status_file
from trainers.contract.run_ids import is_run_id
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import StatusError
from trainers.engines.reports import EngineJob, EngineQueue

MaySee = Callable[[str], bool]

JOB_NAME = "ddp-"  # what the jobs of runs are called, before the run's id


def described(queue: EngineQueue, store: RunStore, may_see: MaySee) -> dict[str, Any]:
    """Return an engine's queue for the page."""
    return {
        "name": queue.name,
        "silent_since_unix_s": queue.silent_since_unix_s,
        "jobs": [_job(job, store, may_see) for job in queue.jobs],
    }


def _job(job: EngineJob, store: RunStore, may_see: MaySee) -> dict[str, Any]:
    run_id = run_of(job, store)
    is_seen = run_id is not None and may_see(run_id)
    return {
        "number": job.number,
        "run_id": run_id if is_seen else None,
        "name": _name(run_id, store) if run_id is not None and is_seen else job.name,
        "state": job.state,
        "is_waiting": job.is_waiting,
        "why": job.why,
        "where": job.where,
        "nodes": job.nodes,
        "num_nodes": job.num_nodes,
        "place": job.place,
        "num_waiting": job.num_waiting,
        "submitted_unix_s": job.submitted_unix_s,
        "starts_unix_s": job.starts_unix_s,
    }


def run_of(job: EngineJob, store: RunStore) -> str | None:
    """Return the run of this page that a job is; None where it is another job of the person."""
    run_id = job.name.removeprefix(JOB_NAME)
    if run_id == job.name or not is_run_id(run_id):
        return None
    try:
        status = status_file.read(RunDirectory(store.runs_dir / run_id).status)
    except (OSError, StatusError):
        return None
    # A run that was resumed has another job now.
    return run_id if status is not None and status.handle == job.handle else None


def _name(run_id: str, store: RunStore) -> str:
    try:
        return str(store.listing.row(run_id)["name"])
    except ValueError:
        return run_id
