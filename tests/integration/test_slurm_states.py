"""What the page shows of a run whose job Slurm, its user or an administrator ends, holds or suspends.

One row of docs/cluster-states.md each. The jobs are real and do nothing; the runs are as their engine left
them. All jobs are submitted at once, because Slurm looks for what is over only now and then.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddp_gui.queue.starter import Starter
from tests.cluster.slurm_cluster import OTHER_ADMINISTRATOR, SlurmCluster
from tests.harness import all_events, create_run, wait_until
from trainers.contract import tickets
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.tickets import Grant, Ticket
from trainers.engines import liveness, registry
from trainers.engines.base import StartError
from trainers.engines.slurm import reasons
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine, job_of

SHOWN_WITHIN_S = 5.0
STEPS_S = 180.0
# Slurm looks for exceeded limits every 30 s, and forgets jobs once a minute.
ENDS_WITHIN_S = 200.0
SUSPENDED_S = 25.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """A job, what is done to it, and what its run shows.

    Attributes:
        has_begun: the run wrote so; otherwise its status is that of its submission.
        is_forgotten: the page looks when squeue does not list the job any more.
    """

    options: tuple[str, ...]
    state: str
    words: str
    wrap: str = "sleep 600"
    act: Callable[[SlurmCluster, str], object] = lambda slurm, job_id: None
    waits_for: str = ""
    has_begun: bool = False
    is_forgotten: bool = False


def cancel(slurm: SlurmCluster, job_id: str) -> None:
    slurm.ask("scancel", job_id)


def cancel_as_administrator(slurm: SlurmCluster, job_id: str) -> None:
    slurm.ask_as_other_administrator("scancel", job_id)


def preempt(slurm: SlurmCluster, job_id: str) -> None:
    """Let a job of a higher QOS take node 2."""
    slurm.ask("sbatch", "--qos=high", "--nodelist=node2", "--exclusive", "--output=/dev/null", "--wrap=sleep 5")


HELD, AT_WORK = ("--hold",), ("--nodelist=node1",)
ROWS: Mapping[str, Row] = {
    "cancelled before it began": Row(
        options=HELD, act=cancel, state="stopped", words="Its Slurm job was cancelled before it began."
    ),
    "cancelled by an administrator before it began": Row(
        options=HELD,
        act=cancel_as_administrator,
        state="stopped",
        words=f"Its Slurm job was cancelled before it began by {OTHER_ADMINISTRATOR}.",
    ),
    "cancelled at work": Row(
        options=AT_WORK,
        waits_for="RUNNING",
        act=cancel,
        has_begun=True,
        state="stopped",
        words="Its Slurm job was cancelled.",
    ),
    "cancelled by an administrator at work": Row(
        options=AT_WORK,
        waits_for="RUNNING",
        act=cancel_as_administrator,
        has_begun=True,
        state="stopped",
        words=f"Its Slurm job was cancelled by {OTHER_ADMINISTRATOR}.",
    ),
    "preempted, and not started again": Row(
        options=("--qos=low", "--nodelist=node2", "--no-requeue"),
        waits_for="RUNNING",
        act=preempt,
        has_begun=True,
        state="stopped",
        words="Slurm ended its job to make room for a job of higher priority.",
    ),
    "the script fails before the run begins": Row(
        options=AT_WORK,
        wrap="exit 3",
        state="failed",
        words="Its Slurm job ended with exit code 3 on node1, and nothing of the run had begun.",
    ),
    "no output can be written there": Row(
        options=(*AT_WORK, "--output=/nowhere/slurm.log"),
        state="failed",
        words="on node1, and nothing of the run had begun.",
    ),
    "the script ends without a word of the run": Row(
        options=AT_WORK, wrap="exit 0", has_begun=True, state="lost", words="(COMPLETED), but the run wrote no end."
    ),
    "the time limit": Row(
        options=(*AT_WORK, "--time=1"),
        has_begun=True,
        state="stopped",
        words="Slurm ended its job at the job's time limit.",
    ),
    "the deadline": Row(
        options=("--nodelist=node1", "--exclusive", "--time=1", "--deadline=now+65"),
        state="stopped",
        words="Slurm ended its job at the job's deadline before it began.",
    ),
    "cancelled while nobody looked, and forgotten": Row(
        options=HELD,
        act=cancel,
        is_forgotten=True,
        state="stopped",
        words="Its Slurm job was cancelled before it began.",
    ),
}


@pytest.fixture
def engine(slurm_with_accounts: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmEngine:
    made = SlurmEngine(Slurm(slurm_with_accounts.environment))
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    return made


def submitted(slurm: SlurmCluster, run: RunDirectory, *options: str, wrap: str = "sleep 600") -> str:
    """Submit a job of a run that only sleeps."""
    output = () if any(option.startswith("--output") for option in options) else ("--output=/dev/null",)
    name = f"--job-name=ddp-{run.run_id}"
    return slurm.ask("sbatch", "--parsable", name, *output, *options, f"--wrap={wrap}").strip()


def with_job(run: RunDirectory, job_id: str, *, has_begun: bool) -> RunDirectory:
    """Give a run the status of one that was submitted, or has begun to train."""
    state, began = ("running", time.time()) if has_begun else ("queued", None)
    run.write_status(Status(state=state, engine="slurm", handle={"job_id": job_id}, started_unix_s=began))
    return run


def state_of(slurm: SlurmCluster, job_id: str) -> str:
    """Return what squeue says of a job; empty when it is forgotten."""
    return slurm.ask("squeue", "--noheader", "--states=all", "--me", "--format=%A %T").partition(f"{job_id} ")[
        2
    ].partition("\n")[0]


@pytest.fixture(scope="module")
def runs(
    slurm_with_accounts: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, RunDirectory]]:
    """The runs of all rows: their jobs are submitted, and what is done to them is done."""
    runs_dir, slurm = tmp_path_factory.mktemp("runs"), slurm_with_accounts
    found = {name: create_run(runs_dir, name="row") for name in ROWS}
    numbers = {}
    for name, row in ROWS.items():
        numbers[name] = submitted(slurm, found[name], *row.options, wrap=row.wrap)
        with_job(found[name], numbers[name], has_begun=row.has_begun)
    for name, row in ROWS.items():
        if row.waits_for:
            wait_until(name, lambda: state_of(slurm, numbers[name]) == row.waits_for, ENDS_WITHIN_S)
        row.act(slurm, numbers[name])
    yield found
    slurm.ask("scancel", "--user=root")


@pytest.mark.parametrize("name", sorted(ROWS, key=lambda name: list(ROWS).index(name)))
def test_a_run_is_what_became_of_its_job(
    name: str, runs: dict[str, RunDirectory], engine: SlurmEngine, slurm_with_accounts: SlurmCluster
) -> None:
    row, run = ROWS[name], runs[name]
    job_id = job_of(liveness.status_file.read(run.status).handle) or ""
    if row.is_forgotten:
        wait_until("Slurm forgetting it", lambda: not state_of(slurm_with_accounts, job_id), ENDS_WITHIN_S)
    wait_until("the end", lambda: liveness.read_status(run).state == row.state, ENDS_WITHIN_S)
    found = liveness.read_status(run)
    assert found.error is not None and row.words in found.error
    assert "supervisor" not in found.error
    if row.state == "lost":
        return  # nothing is written of what is not known
    # Written down: Slurm forgets.
    assert liveness.read_status(run) == found == liveness.status_file.read(run.status)
    ends = [event for event in all_events(run) if event["kind"] == "state"]
    assert len(ends) == 1 and ends[0]["state"] == row.state and row.words in ends[0]["reason"]
