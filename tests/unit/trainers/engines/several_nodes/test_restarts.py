"""Tests of runs that their engine restarts: conditions, first step, and reports."""

from __future__ import annotations

import pytest

from trainers.contract import events, fence
from trainers.contract import status as status_file
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.local.diagnosis import Cause
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.engine_commands import EngineAnswer, ScriptSignals
from trainers.engines.several_nodes.reports import NodesFolder

LOST = Cause(code="node_lost", message="Node 1 is lost.", hint="Look.")
CUT = Cause(code="nodes_cut_off", message="a and b cannot reach each other.", hint="Look.")
DOWN = "Slurm has set node2 down (reason: power)."
OTHER = Cause(code="exception", message="Rank 0 raised.", hint="Look.")


def in_state(run: RunDirectory, state: State) -> None:
    ended = 5.0 if state in events.ENDED_STATES else None
    run.write_status(Status(state=state, engine="slurm", handle={"job_id": "7"}, ended_unix_s=ended))


def ends(
    folder: NodesFolder, state: State, left: int = 3, cause: Cause | None = None, **more: bool
) -> str | None:
    """End a start in a state; return the reason for a restart, or None."""
    told = (
        EngineAnswer(will_restart=more.pop("starts_again"), reason=DOWN) if "starts_again" in more else None
    )
    return restarts.restart_reason(folder, left, state, cause, told, **more)


def test_a_run_that_was_warned_is_saved_and_waits_again(run: RunDirectory, folder: NodesFolder) -> None:
    in_state(run, "running")
    restarts.save_and_end(run, folder, "Its time is over.", 2)
    (command,) = run.commands.read_text().splitlines()
    assert (
        '"name":"stop"' in command.replace(" ", "")
        and "Its time is over. So the run saves and continues" in command
    )
    assert ends(folder, "stopped") == "Its time is over."
    in_state(run, "queued")
    assert restarts.last_restart_reason(run) == "Its time is over."
    assert not restarts.has_ended(run)


def test_without_restarts_left_or_after_a_persons_stop_it_ends(
    run: RunDirectory, folder: NodesFolder
) -> None:
    in_state(run, "stopping")
    restarts.save_and_end(run, folder, "Its time is over.", 2)
    assert ends(folder, "stopped") is None, "a person had stopped it"
    assert ends(folder, "failed", cause=LOST, is_stop_pending=True) is None
    in_state(run, "running")
    restarts.save_and_end(run, folder, "Its time is over.", 0)
    assert "the run saves; Resume continues it" in run.commands.read_text()
    in_state(run, "stopped")
    assert ends(folder, "stopped", left=0) is None
    assert restarts.has_ended(run)


@pytest.mark.parametrize(
    ("cause", "left", "why"),
    [(LOST, 1, LOST.message), (CUT, 1, CUT.message), (LOST, 0, None), (OTHER, 3, None)],
)
def test_a_lost_node_is_no_reason_to_give_up_and_an_error_of_the_run_is(
    folder: NodesFolder, cause: Cause, left: int, why: str | None
) -> None:
    assert ends(folder, "failed", left, cause) == why


def test_what_slurm_ended_by_a_signal_goes_on_if_slurm_starts_it_again(
    run: RunDirectory, folder: NodesFolder
) -> None:
    assert ends(folder, "stopped", starts_again=False) is None
    assert ends(folder, "stopped", starts_again=True) == DOWN
    in_state(run, "stopped")
    restarts.close_start(
        folder, ScriptSignals(None), must_request_restart=False, by_system=True, other_nodes_limit_s=2.0
    )
    assert folder.end_within_s() == 2.0
    assert not restarts.has_ended(run)
    assert restarts.last_restart_reason(run) == DOWN
    restarts.append_restart(run, 1, restarts.UNKNOWN_REASON, None)
    (mark,) = [event for event in events.read_all(run.events) if event["kind"] == "warning"]
    assert mark["code"] == "restarted" and "from the beginning" in mark["message"]
    assert restarts.step_to_resume_from(run) is None


def test_only_the_newest_start_writes(run: RunDirectory, folder: NodesFolder) -> None:
    """A stale launcher that resumes cannot write anything."""
    in_state(run, "running")
    restarts.claim(run, "7-0", "slurm", {"job_id": "7"}, 0)
    try:
        restarts.append_restart(run, 1, "A node was lost.", None)
        fence.write_newest(run.path, fence.Newest(start="7-1", handle={"job_id": "7"}, restart=1))
        before = run.events.read_bytes(), run.status.read_bytes()
        with pytest.raises(fence.SupersededError):
            restarts.append_restart(run, 1, "A node was lost.", None)
        with pytest.raises(fence.SupersededError):
            in_state(run, "failed")
        for start, handle, restart in [("7-0", "7", 0), ("6-3", "6", 3)]:  # an earlier start, an earlier job
            with pytest.raises(fence.SupersededError):
                restarts.claim(run, start, "slurm", {"job_id": handle}, restart)
        assert (run.events.read_bytes(), run.status.read_bytes()) == before
        restarts.claim(run, "8-0", "slurm", {"job_id": "8"}, 0)  # the batch script, submitted manually
        in_state(run, "running")
    finally:
        fence.enter(run.path, None)


def test_one_node_alone_ends_a_start_in_place_of_node_0(run: RunDirectory, folder: NodesFolder) -> None:
    in_state(run, "running")
    restarts.claim(run, "7-0", "slurm", {"job_id": "7"}, 0)
    try:
        assert restarts.take_over(run, folder, 1, "Node 0 is silent.", 2) is True
        kinds = [(event["kind"], event.get("state")) for event in events.read_all(run.events)]
        assert kinds == [("error", None), ("state", "queued")], "one state"
        recorded = status_file.read(run.status)
        assert recorded is not None and recorded.state == "queued" and recorded.error is None
        assert restarts.take_over(run, folder, 2, "Node 0 is silent.", 2) is None
        fence.enter(run.path, "7-0")  # node 0 resumes
        with pytest.raises(fence.SupersededError):
            in_state(run, "failed")
    finally:
        fence.enter(run.path, None)
