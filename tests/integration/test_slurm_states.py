"""The state of a run whose job is ended, held or suspended by Slurm, its user or an administrator.

Rows of docs/cluster-states.md; `test_endings.py` has all of them, with answers as Slurm gives them. The jobs
are real but only sleep; the runs have the status that their engine writes. All jobs are submitted together,
because Slurm checks limits only periodically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ddp_gui.queue.starter import Starter
from tests.cluster.slurm_cluster import OTHER_ADMINISTRATOR, SlurmCluster
from tests.cluster.victims import launcher_of, rank_of
from tests.harness import all_events, create_run, processes_of, wait_until
from trainers.contract import tickets
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.tickets import Grant, Ticket
from trainers.engines import liveness, registry
from trainers.engines.base import StartError
from trainers.engines.several_nodes.reports import LOST_AFTER_S
from trainers.engines.slurm import client
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SUSPENDED_MESSAGE, SlurmEngine, job_id_of

SHOWN_WITHIN_S = 5.0
STEPS_S = 180.0
# Slurm checks exceeded limits every 30 s and forgets jobs once a minute.
ENDS_WITHIN_S = 200.0
# Longer than a node may be silent, than its lease, and than the hang timeout of the test.
SUSPENDED_S = LOST_AFTER_S + 5.0


@dataclass(frozen=True)
class Row:
    """A job, the expected state of its run, and the action on it.

    Attributes:
        has_begun: The run has recorded its start; otherwise its status is that of the submission.
        is_forgotten: The state is read after squeue no longer lists the job.
        comes_after: The row needs a node that another row uses.
    """

    options: tuple[str, ...]
    state: str
    words: str
    act: Callable[[SlurmCluster, str], object] | None = None
    wrap: str = "sleep 600"
    has_begun: bool = True
    is_forgotten: bool = False
    comes_after: bool = False


def cancel(slurm: SlurmCluster, job_id: str) -> None:
    slurm.ask("scancel", job_id)


def cancel_as_administrator(slurm: SlurmCluster, job_id: str) -> None:
    slurm.ask_as_other_administrator("scancel", job_id)


def preempt(slurm: SlurmCluster, job_id: str) -> None:
    """Preempt the job on node 2 with a job of a higher QOS."""
    slurm.ask("sbatch", "--qos=high", "--nodelist=node2", "--exclusive", "--output=/dev/null", "--wrap=true")
    wait_until("it", lambda: state_of(slurm, job_id) not in ("RUNNING", "COMPLETING"), ENDS_WITHIN_S)


def exceed_time_limit(slurm: SlurmCluster, job_id: str) -> None:
    """Move the end of the job to now; the shortest time limit is a minute."""
    slurm.ask("scontrol", "update", f"JobId={job_id}", "EndTime=now+1")


def take_node_down(slurm: SlurmCluster, job_id: str) -> None:
    """Set node 2 down; it registers again automatically (ReturnToService)."""
    slurm.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")


HELD, AT_WORK = ("--hold",), ("--nodelist=node1",)
BEFORE = "The run's Slurm job was cancelled before it started"
ROWS: Mapping[str, Row] = {
    "cancelled by an administrator before it began": Row(
        HELD, "stopped", f"{BEFORE} by {OTHER_ADMINISTRATOR}.", cancel_as_administrator, has_begun=False
    ),
    "cancelled by an administrator at work": Row(
        AT_WORK,
        "stopped",
        f"The run's Slurm job was cancelled by {OTHER_ADMINISTRATOR}.",
        cancel_as_administrator,
    ),
    "preempted, and not started again": Row(
        ("--qos=low", "--nodelist=node2", "--no-requeue"),
        "stopped",
        "Slurm ended the run's job in favour of a job of higher priority.",
        preempt,
    ),
    "the script fails before the run begins": Row(
        AT_WORK,
        "failed",
        "The run's Slurm job ended with exit code 3 on node1 before the run started.",
        wrap="exit 3",
        has_begun=False,
    ),
    "the script ends without a word of the run": Row(
        AT_WORK, "lost", "(COMPLETED), but the run did not record its end.", wrap="exit 0"
    ),
    "the time limit": Row(
        (*AT_WORK, "--time=1"),
        "stopped",
        "Slurm ended the run's job at the job's time limit.",
        exceed_time_limit,
    ),
    "its node fails, and it is not started again": Row(
        ("--nodelist=node2", "--no-requeue"),
        "failed",
        "Slurm reports that a node of the run's job failed (NODE_FAIL: node2).",
        take_node_down,
        comes_after=True,
    ),
    "cancelled while no page was open, and forgotten": Row(
        HELD, "stopped", f"{BEFORE}.", cancel, has_begun=False, is_forgotten=True
    ),
}


@pytest.fixture
def engine(slurm_with_accounts: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmEngine:
    made = SlurmEngine(Slurm(slurm_with_accounts.environment))
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    return made


def submitted(slurm: SlurmCluster, run: RunDirectory, *options: str, wrap: str = "sleep 600") -> str:
    """Submit a job for a run that only sleeps."""
    name = f"--job-name=ddp-{run.run_id}"
    return slurm.ask("sbatch", "--parsable", name, "--output=/dev/null", *options, f"--wrap={wrap}").strip()


def with_job(run: RunDirectory, job_id: str, *, has_begun: bool) -> RunDirectory:
    """Write the status of a submitted run, or of a run that is training."""
    state, began = ("running", time.time()) if has_begun else ("queued", None)
    run.write_status(Status(state=state, engine="slurm", handle={"job_id": job_id}, started_unix_s=began))
    return run


def state_of(slurm: SlurmCluster, job_id: str) -> str:
    """Return the job's state in squeue, or "" if Slurm has forgotten it."""
    return (
        slurm.ask("squeue", "--noheader", "--states=all", "--me", "--format=%A %T")
        .partition(f"{job_id} ")[2]
        .partition("\n")[0]
    )


def act_on(row: Row, slurm: SlurmCluster, job_id: str) -> None:
    """Perform the action of a row, once its job is at work unless it is held."""
    if row.act is None:
        return
    if row.has_begun:
        wait_until("RUNNING", lambda: state_of(slurm, job_id) == "RUNNING", ENDS_WITHIN_S)
    row.act(slurm, job_id)


@pytest.fixture(scope="module")
def runs(
    slurm_with_accounts: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, RunDirectory]]:
    """Yield the runs of all rows, after their jobs were submitted and the actions performed."""
    runs_dir, slurm = tmp_path_factory.mktemp("runs"), slurm_with_accounts
    found = {name: create_run(runs_dir, name="row") for name in ROWS}
    numbers = {}
    for after in (False, True):
        rows = {name: row for name, row in ROWS.items() if row.comes_after == after}
        for name, row in rows.items():
            numbers[name] = submitted(slurm, found[name], *row.options, wrap=row.wrap)
            with_job(found[name], numbers[name], has_begun=row.has_begun)
        for name, row in rows.items():
            act_on(row, slurm, numbers[name])
    yield found
    slurm.ask("scancel", "--user=root")


@pytest.mark.parametrize("name", list(ROWS))
def test_a_run_is_what_became_of_its_job(
    name: str, runs: dict[str, RunDirectory], engine: SlurmEngine, slurm_with_accounts: SlurmCluster
) -> None:
    row, run = ROWS[name], runs[name]
    job_id = job_id_of(liveness.status_file.read(run.status).handle) or ""
    if row.is_forgotten:
        wait_until("Slurm forgetting it", lambda: not state_of(slurm_with_accounts, job_id), ENDS_WITHIN_S)
    wait_until("the end", lambda: liveness.read_status(run).state == row.state, ENDS_WITHIN_S)
    found = liveness.read_status(run)
    assert found.error is not None and row.words in found.error
    assert "supervisor" not in found.error
    if row.state == "lost":
        return  # an unknown end is not recorded
    # The state is recorded, because Slurm forgets the job.
    assert liveness.read_status(run) == found == liveness.status_file.read(run.status)
    ends = [event for event in all_events(run) if event["kind"] == "state"]
    assert len(ends) == 1 and ends[0]["state"] == row.state and row.words in ends[0]["reason"]


@pytest.mark.parametrize(
    ("options", "then", "reason"),
    [
        pytest.param(("--begin=now+600",), ("scontrol", "hold"), "JobHeldAdmin", id="held"),
        pytest.param(("--dependency=afterok:{failed}",), (), "DependencyNeverSatisfied", id="dependency"),
    ],
)
def test_a_run_that_waits_says_why(
    options: tuple[str, ...],
    then: tuple[str, ...],
    reason: str,
    engine: SlurmEngine,
    slurm_with_accounts: SlurmCluster,
    tmp_path: Path,
) -> None:
    slurm, run = slurm_with_accounts, create_run(tmp_path)
    failed = slurm.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 1").strip()
    job_id = submitted(slurm, run, *(option.format(failed=failed) for option in options))
    with_job(run, job_id, has_begun=False)
    if then:
        slurm.ask(*then, job_id)

    def why() -> str | None:
        return engine.describe(run, liveness.read_status(run), is_queued=True).reason

    wait_until("the reason", lambda: why() == client.reason_text(reason), STEPS_S)
    assert liveness.read_status(run).state == "queued"
    cancel(slurm, job_id)
    wait_until("the end", lambda: liveness.read_status(run).state == "stopped", SHOWN_WITHIN_S)


def test_a_job_that_slurm_does_not_accept_is_a_failed_run_in_its_words(
    engine: SlurmEngine, tmp_path: Path
) -> None:
    run = create_run(tmp_path, qos="none of these")
    grant = Grant(token="t", granted_unix_s=time.time(), gpus=())
    ticket = Ticket(person="", kind="cpu", num_ranks=2, asked_unix_s=time.time(), grant=grant)
    tickets.write_queued(run, ticket)
    with pytest.raises(StartError, match="Invalid qos specification"):
        Starter(engine, lambda: None).launch(run, ticket).result()
    found = liveness.read_status(run)
    assert found.state == "failed" and "Invalid qos specification" in str(found.error)


def test_a_suspended_run_says_so_blames_no_rank_goes_on_and_can_be_stopped_while_suspended(
    engine: SlurmEngine, slurm_with_accounts: SlurmCluster, tmp_path: Path
) -> None:
    slurm = slurm_with_accounts
    run = create_run(
        tmp_path,
        num_nodes=2,
        nproc_per_node=1,
        num_epochs=100_000,
        hang_timeout_s=5,
        checkpoint_every_steps=50,
    )
    job_id = engine.start(run).job_id
    wait_until("a checkpoint", run.list_checkpoints, STEPS_S)
    assert liveness.detail(run, liveness.read_status(run)) is None
    slurm.ask("scontrol", "suspend", job_id)
    began = time.monotonic()
    wait_until("it says so", lambda: liveness.detail(run, liveness.read_status(run)), SHOWN_WITHIN_S)
    assert liveness.detail(run, liveness.read_status(run)) == "suspended by Slurm"
    # Slurm says so before its signal has reached the processes of both nodes.
    parts = [find(run, node) for find in (launcher_of, rank_of) for node in (0, 1)]
    wait_until("it", lambda: all(part.status() == psutil.STATUS_STOPPED for part in parts), STEPS_S)
    before = len(all_events(run))
    wait_until(
        "longer than a node or a rank may be silent", lambda: time.monotonic() - began > SUSPENDED_S, 60
    )
    status = liveness.read_status(run)
    assert (status.state, len(all_events(run))) == ("running", before)
    assert engine.describe(run, status).silence is None
    slurm.ask("scontrol", "resume", job_id)
    wait_until("no detail", lambda: liveness.detail(run, liveness.read_status(run)) is None, SHOWN_WITHIN_S)
    wait_until("steps", lambda: len(all_events(run)) > before + 100, STEPS_S)
    assert not [event for event in all_events(run) if event["kind"] in ("warning", "error")]
    slurm.ask("scontrol", "suspend", job_id)
    wait_until("it says so", lambda: liveness.detail(run, liveness.read_status(run)), SHOWN_WITHIN_S)
    engine.stop(run, liveness.read_status(run), save=True)
    wait_until("the stop", lambda: liveness.read_status(run).state == "stopped", STEPS_S)
    said = [event["reason"] for event in all_events(run) if event["kind"] == "state"]
    # Slurm resumes a job before it cancels it. A fast rank may then read the stop command and save, and a
    # fast launcher may record SIGTERM, whose cause is the cancellation.
    is_saved = any(reason.startswith("Stopped after step") for reason in said)
    assert said[-1] in (SUSPENDED_MESSAGE, "The run's Slurm job was cancelled.") or is_saved, said
    wait_until("no process being left", lambda: not processes_of(run), STEPS_S)


def test_a_job_of_another_cluster_tells_nothing_about_a_copied_run(
    engine: SlurmEngine, slurm_with_accounts: SlurmCluster, tmp_path: Path
) -> None:
    """The number of the job belongs to a different job on this cluster."""
    run = create_run(tmp_path, name="copied")
    job_id = slurm_with_accounts.ask(
        "sbatch", "--parsable", "--hold", "--job-name=other", "--wrap=true"
    ).strip()
    cancel(slurm_with_accounts, job_id)
    with_job(run, job_id, has_begun=True)
    found = liveness.read_status(run)
    assert found.state == "lost" and f"Slurm's job {job_id} is another job (other)" in str(found.error)
    assert liveness.status_file.read(run.status) != found
