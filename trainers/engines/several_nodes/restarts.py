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
from trainers.engines.several_nodes.reports import CHECK_EVERY_S, LatestReport, NodesFolder
from trainers.machine.environment import now_unix_s

SILENT_AFTER_S = 15.0
MAX_RUNS = 200


class _FirstNode:
    """Node 0 of a run, observed by its reports in the run's folder."""

    def __init__(self, now: float) -> None:
        self.queried_at = now
        self.checked_at = float("-inf")
        self.report_watch = LatestReport(0)
        self._start = ""
        # Lock of the reading thread, which may hang on a file server.
        self.is_being_read = threading.Lock()

    def update(self, run: RunDirectory) -> None:
        """Read the report of the latest start."""
        starts = NodesFolder.list_starts(run)
        newest_start = starts[-1] if starts else NodesFolder(run, self._start)
        if self._start != newest_start.path.name:
            self._start, self.report_watch = newest_start.path.name, LatestReport(0)
        elapsed_s, self.checked_at = time.monotonic() - self.checked_at, time.monotonic()
        self.report_watch.update(newest_start, elapsed_s)


_first_nodes: dict[Path, _FirstNode] = {}


def silence_of_first_node(run: RunDirectory) -> str | None:
    """Return the time for which node 0's launcher has not reported, as text; None if it reports or never has.

    Only report numbers and this process's clock are used, so other machines' clocks do not matter.
    """
    now = time.monotonic()
    node = _first_nodes.get(run.path)
    if node is None or now - node.queried_at > SILENT_AFTER_S:
        # After a long time without a call, the run may have restarted in between: measure anew.
        node = _first_nodes[run.path] = _FirstNode(now)
    for path in list(_first_nodes)[:-MAX_RUNS]:
        _first_nodes.pop(path, None)
    node.queried_at = now
    if now - node.checked_at >= CHECK_EVERY_S and node.is_being_read.acquire(blocking=False):
        try:
            node.update(run)
        finally:
            node.is_being_read.release()
    silent_s = node.report_watch.silent_s + max(0.0, now - node.checked_at)
    if node.report_watch.report is None or silent_s < SILENT_AFTER_S:
        return None
    host = node.report_watch.report.host
    return f"Node 0 ({host}) has not reported for {silent_s:.0f} s; the state shown is older."


# Node 0 reports every second, but a shared file system may be slow.
STOP_LIMIT_S = 15.0


def watch_for_stop(engine: Engine, run: RunDirectory, end: Callable[[Status], None]) -> None:
    """Watch by node 0's reports a run that has just been sent a stop request. Returns immediately.

    Args:
        end: Ends the run's processes and writes its final events.
    """

    def read_progress(_status: Status) -> list[object]:
        return [folder.read("0") for folder in NodesFolder.list_starts(run)]

    stopping.watch_for_stop(engine, run, read_progress, end, STOP_LIMIT_S)


RESTART_NOTICE = "leaving"
SIGTERM_RECEIVED = "told-to-end"
UNKNOWN_REASON = "The job was restarted; its last start did not record the reason."
# Errors that are not caused by the run itself, so the run is restarted.
EXTERNAL_CAUSES = (NODE_LOST, NODES_CUT_OFF, "node_ended")
# Separates the name of a start from the number of the node that ended the start in place of node 0.
TAKEN_OVER = "+"
# Time to wait for the lock of the events: longer than the lease of node 0, which may hold it.
TAKE_OVER_LIMIT_S = 30.0


def save_and_end(run: RunDirectory, folder: NodesFolder, reason: str, restarts_left: int) -> str:
    """Make a run save and end because its job ends soon; return the command's id.

    Args:
        restarts_left: If 0, the run is not restarted.

    Raises:
        OSError: If the run's folder cannot be written.
    """
    recorded = status_file.read(run.status)
    records_reason = recorded is None or recorded.state != "stopping"  # a user's stop request has priority
    if restarts_left > 0 and records_reason:
        folder.write(RESTART_NOTICE, {"why": reason})
    outcome = "the run saves and continues from the queue"
    if restarts_left == 0:
        outcome = "the run saves; Resume continues it"
    return run.append_command("stop", save=True, why=f"{reason} So {outcome}.")


def restart_reason(
    folder: NodesFolder,
    restarts_left: int,
    state: State,
    cause: Cause | None,
    engine_answer: EngineAnswer | None,
    *,
    is_stop_pending: bool = False,
) -> str | None:
    """Return why the run restarts after an ended start; None if the run ends.

    Args:
        state: State in which the run would end.
        engine_answer: The engine's answer about SIGTERM; None without SIGTERM or an answer.
        is_stop_pending: True if a stop request is pending: a user's, unless the job was about to end.
    """
    notice = folder.read(RESTART_NOTICE)
    if is_stop_pending and notice is None:
        return None
    if engine_answer is not None and engine_answer.will_restart:
        folder.write(RESTART_NOTICE, {"why": engine_answer.reason})
        return engine_answer.reason
    if restarts_left <= 0:
        return None
    if cause is not None and cause.code in EXTERNAL_CAUSES:
        folder.write(RESTART_NOTICE, {"why": cause.message})
        return cause.message
    if state != "stopped" or notice is None:
        return None
    return str(notice.get("why", UNKNOWN_REASON))


def close_start(
    folder: NodesFolder,
    script_signals: ScriptSignals,
    *,
    must_request_restart: bool,
    by_system: bool,
    other_nodes_limit_s: float,
) -> None:
    """Order the end of a start on all nodes, and request the next one if the run continues.

    Args:
        must_request_restart: True if the engine restarts the run only on request.
        by_system: True if SIGTERM ended the start. Slurm restarts a run without a request after a preemption,
            but not after a user has cancelled the job.
    """
    if by_system:
        folder.write(SIGTERM_RECEIVED, {})
    if must_request_restart:
        script_signals.request_restart()
    folder.request_end(within_s=other_nodes_limit_s)
    script_signals.request_end(other_nodes_limit_s)


def claim(run: RunDirectory, start: str, engine: str, handle: Handle, restart: int) -> None:
    """Make this start the run's latest and fence this process by it. The caller holds the run's lock.

    Raises:
        SupersededError: If a later start of the run exists, or the run was given to a later job.
        OSError: If its files cannot be written.
    """
    (run.path / "nodes").mkdir(exist_ok=True)
    with contextlib.closing(EventFile(run.events)) as file, file.locked():
        newest = fence.read_newest(run.path)
        if newest is not None and newest.handle == handle and newest.restart > restart:
            raise SupersededError(f"restart {newest.restart} of this run has begun before restart {restart}")
        if newest is not None and newest.start.startswith(f"{start}{TAKEN_OVER}"):
            raise SupersededError(f"another node has ended the start {start}")
        recorded = status_file.read(run.status)
        belongs_to_other_job = (
            recorded is not None
            and recorded.state in events.LIVE_STATES
            and recorded.engine == engine
            and recorded.handle != handle
            and not _is_earlier_job(recorded.handle, handle)
        )
        if belongs_to_other_job:
            raise SupersededError(f"this run now belongs to another job, not to {handle}")
        fence.enter(run.path, start)
        fence.write_newest(run.path, Newest(start=start, handle=handle, restart=restart))


def take_over(
    run: RunDirectory,
    folder: NodesFolder,
    node: int,
    message: str,
    restarts_left: int,
    *,
    is_stop_pending: bool = False,
) -> bool | None:
    """End a start in place of the lost node 0; afterwards node 0 must not write.

    The order matters: first one node wins the right to act (`create_once`), then the start is renamed, which
    fences node 0 off, and only then the events and the status are written.

    Args:
        message: Message that node 0 is lost.
        is_stop_pending: True if a stop was requested during this start.

    Returns:
        True if the run will be restarted; None if another node has already done this, or the run has ended.

    Raises:
        OSError: If the run's files cannot be written.
        SupersededError: If the run has been restarted in the meantime.
    """
    newest = fence.read_newest(run.path)
    fence.require_newest(run.path)
    if newest is None or not folder.create_once("taken-over", {"node": node}):
        return None
    name = f"{newest.start}{TAKEN_OVER}{node}"
    if not diagnosis.retry_write(
        "newest.json", lambda: _rename_newest(run, newest, name), within_s=TAKE_OVER_LIMIT_S
    ):
        raise OSError(f"the files of run {run.run_id} cannot be written")
    recorded = status_file.read(run.status)
    if recorded is None or recorded.state not in events.LIVE_STATES - {"queued"}:
        return None  # node 0 has recorded the end
    may_continue = (
        not (is_stop_pending or recorded.state == "stopping") or folder.read(RESTART_NOTICE) is not None
    )
    will_restart = restarts_left > 0 and may_continue
    hint = "Check that this machine, its network and the shared folder work."
    cause = Cause(
        code=NODE_LOST, message=message, hint=f"{hint} {diagnosis.describe_latest_checkpoint(run, None)}"
    )
    state: State = "queued" if will_restart else "failed" if may_continue else "stopped"
    if will_restart:
        folder.write(RESTART_NOTICE, {"why": message})
    reason = f"{message} {diagnosis.CONTINUES_HINT}" if will_restart else message
    diagnosis.append_final_events(
        run, diagnosis.make_final_events(state, reason, cause, (), is_recorded=False)
    )
    status = replace(
        recorded,
        state=state,
        error=f"{cause.message} {cause.hint}" if state == "failed" else None,
        last_seen_unix_s=now_unix_s(),
        ended_unix_s=None if will_restart else now_unix_s(),
    )
    diagnosis.retry_write("status.json", lambda: run.write_status(status))
    return will_restart


def _rename_newest(run: RunDirectory, newest: Newest, name: str) -> None:
    with contextlib.closing(EventFile(run.events)) as file, file.locked():
        fence.require_newest(run.path)
        fence.enter(run.path, name)
        fence.write_newest(run.path, replace(newest, start=name))


def _is_earlier_job(job: Handle, other_job: Handle) -> bool:
    """True if the first job ID is lower than the second, after the script was submitted from a terminal."""
    numbers = [handle.get("job_id") if isinstance(handle, Mapping) else None for handle in (job, other_job)]
    first, second = (
        int(number) if isinstance(number, str) and number.isdecimal() else 0 for number in numbers
    )
    return 0 < first < second


def step_to_resume_from(run: RunDirectory) -> int | None:
    """Return the step of the latest complete checkpoint; None: the run starts from the beginning."""
    checkpoint = manifests.latest_intact(run, sum_bytes=manifests.QUICK_BYTES)
    return None if checkpoint is None else checkpoint.step


def has_ended(run: RunDirectory) -> bool:
    """True if the run's end was recorded before the engine restarted it: the restart must exit."""
    recorded = status_file.read(run.status)
    if recorded is None or recorded.state not in events.ENDED_STATES:
        return False
    starts = NodesFolder.list_starts(run)
    return not (starts and starts[-1].read(SIGTERM_RECEIVED) is not None)


def append_restart(run: RunDirectory, number: int, reason: str, step: int | None) -> None:
    """Append an event about a restart, which the page also marks on the loss curve.

    Args:
        number: Number of the restart, from 1.
    """
    origin = (
        "from the beginning, because there is no checkpoint yet"
        if step is None
        else f"from the checkpoint of step {step:,}"
    )
    message = f"{reason} Restart {number}: the run continues {origin}."
    cause = Cause(code="restarted", message=message, hint="No action is needed.")
    diagnosis.append_final_events(run, [("warning", cause.fields())])


def last_restart_reason(run: RunDirectory) -> str:
    """Return the reason that the latest earlier start has recorded."""
    folders = [
        folder for folder in NodesFolder.list_starts(run) if (folder.path / f"{RESTART_NOTICE}.json").exists()
    ]
    notice = folders[-1].read(RESTART_NOTICE) if folders else None
    reason = None if notice is None else notice.get("why")
    return reason if isinstance(reason, str) else UNKNOWN_REASON
