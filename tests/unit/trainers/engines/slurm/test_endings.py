"""Tests of the final status of a run whose job has ended, including endings that no test cluster produces."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.harness import all_events, create_run, wait_until
from tests.unit.trainers.engines.slurm.test_slurm import put
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness, registry
from trainers.engines.local import diagnosis
from trainers.engines.remembered import CachedAnswer
from trainers.engines.slurm.engine import SlurmEngine

UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTS = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
# A line of `scontrol show job`, shortened.
SHOWN = (
    "JobId=12 JobName=ddp-{run} UserId=ann(1000) JobState={state} ExitCode=9:0 NodeList={nodes} NumNodes=2"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run(tmp_path / "runs")


def engine_with(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> SlurmEngine:
    """Return an engine whose commands are scripts; each script logs its calls."""
    for name, body in programs.items():
        slurm = put(folder, name, f"echo {name} >> {folder}/asked; {body}")
    made = SlurmEngine(slurm)
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    return made


def write(run: RunDirectory, *, has_begun: bool) -> None:
    began = time.time() if has_begun else None
    state = "running" if has_begun else "queued"
    run.write_status(Status(state=state, engine="slurm", handle={"job_id": "12"}, started_unix_s=began))


@pytest.mark.parametrize("source", ["accounts", "controller", "queue"])
@pytest.mark.parametrize(
    ("state", "nodes", "has_begun", "shown", "words"),
    [
        ("CANCELLED", "", False, "stopped", "The run's Slurm job was cancelled before it started."),
        ("CANCELLED", "n1", True, "stopped", "The run's Slurm job was cancelled."),
        ("CANCELLED", "", True, "stopped", "was cancelled while it waited for a restart."),
        ("DEADLINE", "", False, "stopped", "at the job's deadline before it started."),
        ("PREEMPTED", "n1", True, "stopped", "in favour of a job of higher priority."),
        (
            "REVOKED",
            "",
            False,
            "stopped",
            "Another cluster of the federation took over the run's job before it",
        ),
        ("TIMEOUT", "n1", True, "stopped", "Slurm ended the run's job at the job's time limit."),
        (
            "BOOT_FAIL",
            "n1",
            False,
            "failed",
            "Slurm could not launch the run's job on the nodes (BOOT_FAIL: n1).",
        ),
        ("NODE_FAIL", "n[1-2]", True, "failed", "a node of the run's job failed (NODE_FAIL: n[1-2])."),
        ("OUT_OF_MEMORY", "n1", True, "failed", "more memory than it had requested (OUT_OF_MEMORY: n1)."),
        ("FAILED", "n1", True, "lost", "(FAILED), but the run did not record its end."),
        ("FAILED", "n1", False, "failed", "on n1 before the run started."),
        ("COMPLETED", "n1", True, "lost", "(COMPLETED), but the run did not record its end."),
    ],
)
def test_each_end_of_a_job_has_its_state_and_its_reason(
    source: str,
    state: str,
    nodes: str,
    has_begun: bool,
    shown: str,
    words: str,
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(run, has_begun=has_begun)
    line = SHOWN.format(run=run.run_id, state=state, nodes=nodes or "(null)")
    engine_with(
        tmp_path,
        monkeypatch,
        squeue=f"echo '12|{state}|None|{nodes}|p|1|0|0|x'",
        sacct=f"echo '{state}|9:0|{nodes or 'None assigned'}|1700000000|ddp-{run.run_id}'"
        if source == "accounts"
        else NO_ACCOUNTS,
        scontrol=f"echo '{line}'" if source == "controller" else "exit 1",
    )
    found = liveness.read_status(run)
    assert (found.state, words in str(found.error)) == (shown, True), found
    assert "supervisor" not in str(found.error) and "machine restarted" not in str(found.error)
    if source != "queue" and state in ("FAILED", "COMPLETED"):
        assert "exit code 9" in str(found.error)
    if shown != "lost":
        (said,) = [event for event in all_events(run) if event["kind"] == "state"]
        assert said["state"] == shown and words in said["reason"]
        # The result is stored: later reads query neither Slurm's accounting nor a command.
        (tmp_path / "asked").unlink()
        assert liveness.read_status(run) == found
        assert "sacct" not in ((tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else "")


def test_an_end_that_a_rank_has_recorded_is_not_followed_by_another(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, has_begun=True)
    file = EventFile(run.events)
    warning = {"code": "late", "message": "The launcher was killed.", "hint": ""}
    stopped = {"state": "stopped", "reason": "Stopped after step 46, saved."}
    file.append([(1.0, "state", stopped), (2.0, "warning", warning)])
    file.close()
    accounts = f"echo 'CANCELLED|0:9|n1|1700000000|ddp-{run.run_id}'"
    engine_with(tmp_path, monkeypatch, squeue="true", sacct=accounts, scontrol="exit 1")
    found = liveness.read_status(run)
    assert (found.state, found.error) == ("stopped", "The run's Slurm job was cancelled.")
    reasons = [event["reason"] for event in all_events(run) if event["kind"] == "state"]
    assert reasons == ["Stopped after step 46, saved."]


def test_of_a_job_that_slurm_has_forgotten_no_cause_is_made_up(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, has_begun=True)
    engine_with(tmp_path, monkeypatch, squeue="true", sacct=NO_ACCOUNTS, scontrol=UNKNOWN)
    for _ in range(20):
        found = liveness.read_status(run)
        assert found.state == "lost"
    assert found.error == (
        "Slurm no longer knows job 12, and the run's folder has no record of its end. "
        "No checkpoint was saved: start the run again."
    )
    assert (tmp_path / "asked").read_text().count("sacct") <= 2, "what is not known is asked ever less often"
    assert liveness.status_file.read(run.status) != found and not run.events.exists()


def test_a_controller_that_does_not_answer_forgets_no_job(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, has_begun=True)
    down = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
    engine_with(tmp_path, monkeypatch, squeue="true", sacct=NO_ACCOUNTS, scontrol=down)
    found = liveness.read_status(run)
    words = (
        "It is unknown how job 12 ended, because Slurm does not answer "
        "(Unable to contact slurm controller (connect failure))."
    )
    assert (found.state, found.error) == ("lost", words)
    assert liveness.status_file.read(run.status) != found, "it may answer later"


@pytest.mark.parametrize("first", ["queue", "run"])
def test_the_silence_of_the_controller_ends_on_each_page_when_it_answers(
    first: str, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, has_begun=True)
    monkeypatch.setattr(CachedAnswer, "retry_s", 0.0)
    down, up = "echo 'Unable to contact slurm controller' >&2; exit 1", "echo '12|RUNNING|None|n1|p|1|0|0|x'"
    engine = engine_with(tmp_path, monkeypatch, squeue=down)

    def shown(page: str) -> bool:
        if page == "queue":
            return engine.queue().silent_since_unix_s is not None
        return liveness.silence(run, liveness.read_status(run)) is not None

    other = "run" if first == "queue" else "queue"
    assert shown(first) and shown(other)
    put(tmp_path, "squeue", up)
    # Only one page stays open, and the query of the other page is not repeated.
    wait_until("the answer", lambda: not shown(other), 10.0)
    wait_until("the answer", lambda: not shown(first), 10.0)


def test_a_job_that_was_submitted_elsewhere_a_moment_ago_is_not_gone(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(tmp_path, monkeypatch, squeue="echo '11|RUNNING|None|n1|p|1|0|0|x'")
    assert not engine.describe(run, Status(state="running", handle={"job_id": "11"})).is_waiting
    put(tmp_path, "squeue", "echo '12|PENDING|Priority||p|1|0|0|x'")
    write(run, has_begun=False)
    assert liveness.read_status(run).state == "queued"


def test_where_no_event_can_be_written_the_end_is_shown_and_written_once(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, has_begun=False)
    num_tried = 0

    def disk_is_full(run: RunDirectory, words: object) -> None:
        nonlocal num_tried
        num_tried += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(diagnosis, "append_within_limits", disk_is_full)
    queue = "echo '12|CANCELLED|None||p|1|0|0|x'"
    engine_with(tmp_path, monkeypatch, squeue=queue, sacct=NO_ACCOUNTS, scontrol="exit 1")
    for _ in range(3):
        found = liveness.read_status(run)
        words = "The run's Slurm job was cancelled before it started."
        assert (found.state, found.error) == ("stopped", words)
    assert liveness.status_file.read(run.status) == found and num_tried == 1
