"""Tests of the engine's own queue on the page: which jobs are runs of this page, and their fields."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddp_gui.auth.rights import EVERYBODY
from ddp_gui.queue.presenter import RunLabels, describe_jobs
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.run.test_summary import run_with
from tests.unit.ddp_gui.runs.test_runs import store_of
from trainers.contract.status import Status
from trainers.engines.base import EngineJob, EngineQueue

# ruff: noqa: F811

JOB = EngineJob(
    number="12",
    handle={"job_id": "12"},
    name="other",
    state="waits",
    is_waiting=True,
    why="",
    where="gpu",
    nodes="",
    num_nodes=2,
    place=None,
    num_waiting=None,
    submitted_unix_s=None,
    starts_unix_s=None,
)


def test_only_the_newest_job_of_a_run_is_that_run(tmp_path: Path, catalogue) -> None:
    run, store = run_with(tmp_path, 100), store_of(tmp_path, catalogue)
    run.write_status(Status(state="queued", engine="slurm", handle={"job_id": "12"}))
    named = f"ddp-{run.run_id}"
    jobs = (
        JOB,
        replace(JOB, name=named),
        replace(JOB, name=named, handle={"job_id": "11"}),
        replace(JOB, name="ddp-../../etc"),
        replace(JOB, name="ddp-gone"),
    )
    queue = EngineQueue(name="Slurm", jobs=jobs)
    for is_seen, run_ids in ((True, [None, run.run_id, None, None, None]), (False, [None] * 5)):
        shown = describe_jobs(queue, RunLabels(store, EVERYBODY, lambda _, is_seen=is_seen: is_seen))
        assert [job["run_id"] for job in shown["jobs"]] == run_ids
