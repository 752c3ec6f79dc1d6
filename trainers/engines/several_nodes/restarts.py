"""Automatic restarts, and the end of runs on several nodes when node 0 is silent or lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from trainers.contract import events, fence, manifests
from trainers.contract import status as status_file
from trainers.contract.events import EventFile, State
from trainers.contract.fence import Newest, SupersededError
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, Status
from trainers.engines.base import Engine
from trainers.engines.local import diagnosis, stopping
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stopping import NODE_LOST, NODES_CUT_OFF
from trainers.engines.several_nodes.engine_commands import EngineAnswer, ScriptSignals
from trainers.engines.several_nodes.reports import LOOK_EVERY_S, LatestReport, NodesFolder
from trainers.machine.environment import now_unix_s

SILENT_AFTER_S = 15.0
MOST_RUNS = 200


class _FirstNode:
    """Node 0 of a run, observed by its reports in the run's folder."""

    def __init__(self, now: float) -> None:
        self.asked_at = now
        self.looked_at = float("-inf")
        self.latest = LatestReport(0)
        self._start = ""
        # Lock of the reading thread, which may hang on a file server.
        self.is_being_read = threading.Lock()

    def look(self, run: RunDirectory) -> None:
        """Read the report of the latest start."""
        starts = NodesFolder.of_run(run)
        newest = starts[-1] if starts else NodesFolder(run, self._start)
        if self._start != newest.path.name:
            self._start, self.latest = newest.path.name, LatestReport(0)
        passed_s, self.looked_at = time.monotonic() - self.looked_at, time.monotonic()
        self.latest.look(newest, passed_s)


_first_nodes: dict[Path, _FirstNode] = {}


def silence_of_first_node(run: RunDirectory) -> str | None:
    """Return the time for which node 0's launcher has not reported, as text; None if it reports or never has.

    Only report numbers and this process's clock are used, so other machines' clocks do not matter.
    """
    now = time.monotonic()
    node = _first_nodes.get(run.path)
    if node is None or now - node.asked_at > SILENT_AFTER_S:
        # After a long time without a call, the run may have restarted in between: measure anew.
        node = _first_nodes[run.path] = _FirstNode(now)
    for path in list(_first_nodes)[:-MOST_RUNS]:
        _first_nodes.pop(path, None)
    node.asked_at = now
    if now - node.looked_at >= LOOK_EVERY_S and node.is_being_read.acquire(blocking=False):
        try:
            node.look(run)
        finally:
            node.is_being_read.release()
    silent_s = node.latest.silent_s + max(0.0, now - node.looked_at)
    if node.latest.report is None or silent_s < SILENT_AFTER_S:
        return None
    host = node.latest.report.host
    return f"Node 0 ({host}) has not reported for {silent_s:.0f} s; the state shown is older."


# Node 0 reports every second, but a shared file system may be slow.
PATIENCE_OF_STOP_S = 15.0


def watch_for_stop(engine: Engine, run: RunDirectory, end: Callable[[Status], None]) -> None:
    """Watch by node 0's reports a run that has just been sent a stop request. Returns immediately.

    Args:
        end: Ends the run's processes and writes its final events.
    """

    def signs_of_life(_status: Status) -> list[object]:
        return [folder.read("0") for folder in NodesFolder.of_run(run)]

    stopping.watch_for_stop(engine, run, signs_of_life, end, PATIENCE_OF_STOP_S)


LEAVING = "leaving"
TOLD_TO_END = "told-to-end"
NOT_SAID = "The job was restarted; its last start did not record the reason."
# Errors that are not caused by the run itself, so the run is restarted.
NO_FAULT_OF_THE_RUN = (NODE_LOST, NODES_CUT_OFF, "node_ended")
# Separates the name of a start from the number of the node that ended the start in place of node 0.
TAKEN_OVER = "+"
# Time to wait for the lock of the events: longer than the lease of node 0, which may hold it.
TAKE_OVER_S = 30.0


def leave(run: RunDirectory, folder: NodesFolder, why: str, restarts_left: int) -> str:
    """Make a run save and end because its job ends soon; return the command's id.

    Args:
        restarts_left: If 0, the run is not restarted.

    Raises:
        OSError: If the run's folder cannot be written.
    """
    recorded = status_file.read(run.status)
    is_wanted = recorded is None or recorded.state != "stopping"  # a user's stop request has priority
    if restarts_left > 0 and is_wanted:
        folder.write(LEAVING, {"why": why})
    then = "the run saves and continues from the queue"
    if restarts_left == 0:
        then = "the run saves; Resume continues it"
    return run.append_command("stop", save=True, why=f"{why} So {then}.")


def restart_reason(
    folder: NodesFolder,
    restarts_left: int,
    state: State,
    cause: Cause | None,
    told: EngineAnswer | None,
    *,
    is_stop_asked: bool = False,
) -> str | None:
    """Return why the run restarts after an ended start; None if the run ends.

    Args:
        state: State in which the run would end.
        told: The engine's answer about SIGTERM; None without SIGTERM or an answer.
        is_stop_asked: True if a stop request is pending: a user's, unless the job was about to end.
    """
    notice = folder.read(LEAVING)
    if is_stop_asked and notice is None:
        return None
    if told is not None and told.starts_again:
        folder.write(LEAVING, {"why": told.why})
        return told.why
    if restarts_left <= 0:
        return None
    if cause is not None and cause.code in NO_FAULT_OF_THE_RUN:
        folder.write(LEAVING, {"why": cause.message})
        return cause.message
    if state != "stopped" or notice is None:
        return None
    return str(notice.get("why", NOT_SAID))


def close_start(
    folder: NodesFolder,
    signs: ScriptSignals,
    *,
    asks_again: bool,
    by_system: bool,
    others_end_within_s: float,
) -> None:
    """Order the end of a start on all nodes, and request the next one if the run continues.

    Args:
        asks_again: True if the engine restarts the run only on request.
        by_system: True if SIGTERM ended the start. Slurm restarts a run without a request after a preemption,
            but not after a user has cancelled the job.
    """
    if by_system:
        folder.write(TOLD_TO_END, {})
    if asks_again:
        signs.request_restart()
    folder.order_end(within_s=others_end_within_s)
    signs.request_end(others_end_within_s)


def claim(run: RunDirectory, start: str, engine: str, handle: Handle, restart: int) -> None:
    """Make this start the run's latest and fence this process by it. The caller holds the run's lock.

    Raises:
        SupersededError: If a later start of the run exists, or the run was given to a later job.
        OSError: If its files cannot be written.
    """
    (run.path / "nodes").mkdir(exist_ok=True)
    with contextlib.closing(EventFile(run.events)) as file, file.alone():
        newest = fence.newest_of(run.path)
        if newest is not None and newest.handle == handle and newest.restart > restart:
            raise SupersededError(f"restart {newest.restart} of this run has begun before restart {restart}")
        if newest is not None and newest.start.startswith(f"{start}{TAKEN_OVER}"):
            raise SupersededError(f"another node has ended the start {start}")
        recorded = status_file.read(run.status)
        belongs_elsewhere = (
            recorded is not None
            and recorded.state in events.LIVE_STATES
            and recorded.engine == engine
            and recorded.handle != handle
            and not _is_earlier_job(recorded.handle, handle)
        )
        if belongs_elsewhere:
            raise SupersededError(f"this run now belongs to another job, not to {handle}")
        fence.enter(run.path, start)
        fence.write_newest(run.path, Newest(start=start, handle=handle, restart=restart))


def take_over(
    run: RunDirectory,
    folder: NodesFolder,
    node: int,
    lost: str,
    restarts_left: int,
    *,
    is_stop_asked: bool = False,
) -> bool | None:
    """End a start in place of the lost node 0; afterwards node 0 must not write.

    The order matters: first one node wins the right to act (`make_once`), then the start is renamed, which
    fences node 0 off, and only then the events and the status are written.

    Args:
        lost: Message that node 0 is lost.
        is_stop_asked: True if a stop was requested during this start.

    Returns:
        True if the run will be restarted; None if another node has already done this, or the run has ended.

    Raises:
        OSError: If the run's files cannot be written.
        SupersededError: If the run has been restarted in the meantime.
    """
    newest = fence.newest_of(run.path)
    fence.require_newest(run.path)
    if newest is None or not folder.make_once("taken-over", {"node": node}):
        return None
    name = f"{newest.start}{TAKEN_OVER}{node}"
    if not diagnosis.retry_write(
        "newest.json", lambda: _rename_newest(run, newest, name), within_s=TAKE_OVER_S
    ):
        raise OSError(f"the files of run {run.run_id} cannot be written")
    recorded = status_file.read(run.status)
    if recorded is None or recorded.state not in events.LIVE_STATES - {"queued"}:
        return None  # node 0 has recorded the end
    is_wanted = not (is_stop_asked or recorded.state == "stopping") or folder.read(LEAVING) is not None
    is_again = restarts_left > 0 and is_wanted
    hint = "Check that this machine, its network and the shared folder work."
    cause = Cause(code=NODE_LOST, message=lost, hint=f"{hint} {diagnosis.what_is_kept(run, None)}")
    state: State = "queued" if is_again else "failed" if is_wanted else "stopped"
    if is_again:
        folder.write(LEAVING, {"why": lost})
    reason = f"{lost} {diagnosis.GOES_ON}" if is_again else lost
    diagnosis.append_final_events(run, diagnosis.causes_of_end(state, reason, cause, (), is_said=False))
    status = replace(
        recorded,
        state=state,
        error=f"{cause.message} {cause.hint}" if state == "failed" else None,
        last_seen_unix_s=now_unix_s(),
        ended_unix_s=None if is_again else now_unix_s(),
    )
    diagnosis.retry_write("status.json", lambda: run.write_status(status))
    return is_again


def _rename_newest(run: RunDirectory, newest: Newest, name: str) -> None:
    with contextlib.closing(EventFile(run.events)) as file, file.alone():
        fence.require_newest(run.path)
        fence.enter(run.path, name)
        fence.write_newest(run.path, replace(newest, start=name))


def _is_earlier_job(one: Handle, other: Handle) -> bool:
    """True if the first job ID is lower than the second, after the script was submitted from a terminal."""
    numbers = [handle.get("job_id") if isinstance(handle, Mapping) else None for handle in (one, other)]
    first, second = (
        int(number) if isinstance(number, str) and number.isdecimal() else 0 for number in numbers
    )
    return 0 < first < second


def step_to_resume_from(run: RunDirectory) -> int | None:
    """Return the step of the latest complete checkpoint; None: the run starts from the beginning."""
    whole = manifests.newest_whole(run, sum_bytes=manifests.QUICK_BYTES)
    return None if whole is None else whole.step


def has_ended(run: RunDirectory) -> bool:
    """True if the run's end was recorded before the engine restarted it: the restart must exit."""
    recorded = status_file.read(run.status)
    if recorded is None or recorded.state not in events.ENDED_STATES:
        return False
    starts = NodesFolder.of_run(run)
    return not (starts and starts[-1].read(TOLD_TO_END) is not None)


def append_restart(run: RunDirectory, number: int, why: str, step: int | None) -> None:
    """Append an event about a restart, which the page also marks on the loss curve.

    Args:
        number: Number of the restart, from 1.
    """
    origin = (
        "from the beginning, because there is no checkpoint yet"
        if step is None
        else f"from the checkpoint of step {step:,}"
    )
    message = f"{why} Restart {number}: the run continues {origin}."
    cause = Cause(code="restarted", message=message, hint="No action is needed.")
    diagnosis.append_final_events(run, [("warning", cause.fields())])


def last_restart_reason(run: RunDirectory) -> str:
    """Return the reason that the latest earlier start has recorded."""
    left = [folder for folder in NodesFolder.of_run(run) if (folder.path / f"{LEAVING}.json").exists()]
    notice = left[-1].read(LEAVING) if left else None
    why = None if notice is None else notice.get("why")
    return why if isinstance(why, str) else NOT_SAID
