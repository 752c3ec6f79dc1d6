"""Restarts after the loss of a node."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainers.contract import events, fence, manifests
from trainers.contract import status as status_file
from trainers.contract.events import EventFile, State
from trainers.contract.fence import Newest, SupersededError
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, Status
from trainers.engines.local import diagnosis
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stopping import NODE_LOST, NODES_CUT_OFF
from trainers.engines.several_nodes import reports
from trainers.engines.several_nodes.engine_commands import EngineAnswer, Signs
from trainers.engines.several_nodes.reports import NodeReport, NodesFolder
from trainers.machine.environment import now_unix_s

LOOK_EVERY_S = 1.0
SILENT_AFTER_S = 15.0
MOST_RUNS = 200


@dataclass
class _Heard:
    """What was heard last: the name of the start, the number of the report, and when it was new."""

    newest: tuple[str, int]
    host: str
    heard_at: float
    looked_at: float
    asked_at: float


_heard: dict[Path, _Heard] = {}
# Runs whose files are read just now, by a thread that may wait for a file server.
_read: set[Path] = set()
_lock = threading.Lock()


def silence_of_first_node(run: RunDirectory) -> str | None:
    """Return for how long the launcher of node 0 has reported nothing; None while it does, or never began.

    Numbers of reports are compared by this process's clock, so no other clock has to be right.
    """
    now = time.monotonic()
    with _lock:
        known = _heard.get(run.path)
        if known is not None and now - known.asked_at > SILENT_AFTER_S:
            # Nobody has asked, so the run may have ended and begun again: that is no silence.
            del _heard[run.path]
            known = None
        if known is not None:
            known.asked_at = now
        is_due = known is None or now - known.looked_at >= LOOK_EVERY_S
        reads = is_due and run.path not in _read
        if reads:
            _read.add(run.path)
    if reads:
        try:
            start, report = _newest_report(run)
        finally:
            with _lock:
                _read.discard(run.path)
        now = time.monotonic()
        with _lock:
            known = _note(run.path, start, report, now)
    silent_s = 0.0 if known is None else now - known.heard_at
    if known is None or silent_s < SILENT_AFTER_S:
        return None
    return f"Node 0 ({known.host}) has not been heard for {silent_s:.0f} s; what is shown here is older."


def _newest_report(run: RunDirectory) -> tuple[str | None, NodeReport | None]:
    starts = NodesFolder.of_run(run)
    if not starts:
        return None, None
    values = starts[-1].read("0")
    return starts[-1].path.name, None if values is None else reports.node_report(values)


def _note(path: Path, start: str | None, report: NodeReport | None, now: float) -> _Heard | None:
    """Note what was read; the caller holds the lock."""
    known = _heard.get(path)
    if known is not None:
        known.looked_at = now
    if start is None:
        return known
    if report is None:
        if known is not None and known.newest[0] != start:
            del _heard[path]  # the newest start has not reported yet
            return None
        return known
    newest = (start, report.count)
    if known is None or known.newest != newest:
        known = _heard[path] = _Heard(
            newest=newest, host=report.host, heard_at=now, looked_at=now, asked_at=now
        )
        while len(_heard) > MOST_RUNS:
            del _heard[next(iter(_heard))]
    return known


log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
# It reports each second, and a shared file system may be slow.
PATIENCE_OF_STOP_S = 15.0
WATCHED_S = 180.0

_watched: set[Path] = set()


def watch_for_stop(
    run: RunDirectory, read_status: Callable[[], Status], end: Callable[[Status], None]
) -> None:
    """Watch a run that was just told to stop; returns at once.

    Args:
        end: cancels its job, and says the run's last words.
    """
    with _lock:
        if run.path in _watched:
            return
        _watched.add(run.path)
    name = f"stop-{run.run_id}"
    threading.Thread(target=_watch, args=(run, read_status, end), name=name, daemon=True).start()


def _watch(run: RunDirectory, read_status: Callable[[], Status], end: Callable[[Status], None]) -> None:
    try:
        began = heard_at = time.monotonic()
        newest: list[object] = []
        while time.monotonic() - began < WATCHED_S:
            status = read_status()
            if status.state not in events.LIVE_STATES:
                return
            signs = _signs_of_life(run)
            if signs != newest:
                newest, heard_at = signs, time.monotonic()
            if time.monotonic() - heard_at > PATIENCE_OF_STOP_S:
                log.warning("the first node of %s does not react to Stop: its job is cancelled", run.run_id)
                end(status)
                return
            time.sleep(POLL_EVERY_S)
    except OSError as error:
        log.warning("the stop of %s cannot be watched: %s", run.run_id, error)
    finally:
        with _lock:
            _watched.discard(run.path)


def _signs_of_life(run: RunDirectory) -> list[object]:
    """Return what the first node has reported last in each start; nothing while there is no report."""
    return [folder.read("0") for folder in NodesFolder.of_run(run)]


LEAVING = "leaving"
TOLD_TO_END = "told-to-end"
# For a shell script, so plain files: that the job is to be started again; for how long the rest may end.
AGAIN = "again"
OVER = "over"
NOT_SAID = "The job was started again; its last start has not written why."
# The run did nothing wrong, so it is started again.
NO_FAULT_OF_THE_RUN = (NODE_LOST, NODES_CUT_OFF, "node_ended")
# Between the name of a start and the number of the node that has ended it in place of node 0.
TAKEN_OVER = "+"
# The lease of node 0, which may hold the lock of the events, is over by then.
TAKE_OVER_S = 30.0


def leave(run: RunDirectory, folder: NodesFolder, why: str, restarts_left: int) -> str:
    """Have a run save and end, because its job soon ends; return the command's id.

    Args:
        restarts_left: where there are none, it is not started again.

    Raises:
        OSError: when the run's folder cannot be written.
    """
    recorded = status_file.read(run.status)
    is_wanted = recorded is None or recorded.state != "stopping"  # a person's Stop stands
    if restarts_left > 0 and is_wanted:
        folder.write(LEAVING, {"why": why})
    then = "it is saved and goes on in the queue" if restarts_left > 0 else "it is saved; Resume goes on"
    return run.append_command("stop", save=True, why=f"{why} So {then}.")


def why_again(
    folder: NodesFolder,
    restarts_left: int,
    state: State,
    cause: Cause | None,
    told: EngineAnswer | None,
    *,
    is_stop_asked: bool = False,
) -> str | None:
    """Return why a start that has ended is followed by another one; None where the run has ended with it.

    Args:
        state: that the run would end in.
        is_stop_asked: a stop has not been obeyed yet, of a person unless the job was to end soon.
        told: what the engine has answered after SIGTERM; None where there was none, or no answer.
    """
    said = folder.read(LEAVING)
    if is_stop_asked and said is None:
        return None
    if told is not None and told.starts_again:
        folder.write(LEAVING, {"why": told.why})
        return told.why
    if restarts_left <= 0:
        return None
    if cause is not None and cause.code in NO_FAULT_OF_THE_RUN:
        folder.write(LEAVING, {"why": cause.message})
        return cause.message
    if state != "stopped" or said is None:
        return None
    return str(said.get("why", NOT_SAID))


def close_start(
    folder: NodesFolder,
    signs: Signs,
    *,
    asks_again: bool,
    by_system: bool,
    others_end_within_s: float,
) -> None:
    """Order the end of a start on all nodes, and ask for the next one where the run is to go on.

    Args:
        asks_again: the engine does not start the run again without being asked.
        by_system: it was ended by SIGTERM. Where Slurm has taken its nodes for another job, it starts the run
            again by itself; where somebody has cancelled the job, it does not.
    """
    if by_system:
        folder.write(TOLD_TO_END, {})
    if asks_again:
        signs.ask_again()
        _touch(folder.path / AGAIN)
    folder.order_end(within_s=others_end_within_s)
    signs.say_over(others_end_within_s)
    _touch(folder.path / OVER, f"{others_end_within_s:.0f}\n")


def claim(run: RunDirectory, start: str, engine: str, handle: Handle, restart: int) -> None:
    """Make this start the run's newest and fence this process by it; the caller has the run's lock.

    Raises:
        SupersededError: when a later start of the run has begun, or the run was given to a later job.
        OSError: when its files cannot be written.
    """
    (run.path / "nodes").mkdir(exist_ok=True)
    events_file = EventFile(run.events)
    try:
        with events_file.alone():
            newest = fence.newest_of(run.path)
            if newest is not None and newest.handle == handle and newest.restart > restart:
                raise SupersededError(
                    f"restart {newest.restart} of this run has begun before restart {restart}"
                )
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
                raise SupersededError(f"this run was given to another job than {handle}")
            fence.enter(run.path, start)
            fence.write_newest(run.path, Newest(start=start, handle=handle, restart=restart))
    finally:
        events_file.close()


def take_over(
    run: RunDirectory,
    folder: NodesFolder,
    node: int,
    lost: str,
    restarts_left: int,
    *,
    is_stop_asked: bool = False,
) -> bool | None:
    """End a start in place of node 0, which is not heard any more; from now on node 0 must not write.

    Args:
        lost: says that node 0 is lost.
        is_stop_asked: since this start began.

    Returns:
        Whether the run is to be started again; None where another node has done all this, or the run has
        ended.

    Raises:
        OSError: when the run's files cannot be written.
        SupersededError: when the run has been started again meanwhile.
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
        return None  # node 0 had its last word
    is_wanted = not (is_stop_asked or recorded.state == "stopping") or folder.read(LEAVING) is not None
    is_again = restarts_left > 0 and is_wanted
    hint = "Look whether that machine is up, and whether its network and the shared folder are."
    cause = Cause(code=NODE_LOST, message=lost, hint=f"{hint} {diagnosis.what_is_kept(run, None)}")
    state: State = "queued" if is_again else "failed" if is_wanted else "stopped"
    if is_again:
        folder.write(LEAVING, {"why": lost})
    reason = f"{lost} {diagnosis.GOES_ON}" if is_again else lost
    kind = "warning" if state in diagnosis.GOOD_ENDS else "error"
    diagnosis.append_final_events(
        run, [(kind, cause.fields()), ("state", {"state": state, "reason": reason})]
    )
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
    events_file = EventFile(run.events)
    try:
        with events_file.alone():
            fence.require_newest(run.path)
            fence.enter(run.path, name)
            fence.write_newest(run.path, replace(newest, start=name))
    finally:
        events_file.close()


def _is_earlier_job(one: Handle, other: Handle) -> bool:
    """True if the number of one job is below the other's: somebody has submitted the run's script by hand."""
    numbers = [handle.get("job_id") if isinstance(handle, Mapping) else None for handle in (one, other)]
    first, second = (
        int(number) if isinstance(number, str) and number.isdecimal() else 0 for number in numbers
    )
    return 0 < first < second


def say_stopped(run: RunDirectory, status: Status, message: str) -> None:
    """Write the last words of a run that was ended by force, unless it had them; nobody must own it any more.

    Args:
        status: what was known of it before.

    Raises:
        ValueError: when somebody owns it.
    """
    lock = run.acquire_lock()
    try:
        recorded = status_file.read(run.status) or status
        if recorded.ended_unix_s is not None:
            return
        diagnosis.append_final_events(run, [("state", {"state": "stopped", "reason": message})])
        run.write_status(replace(recorded, state="stopped", error=None, ended_unix_s=now_unix_s()))
    finally:
        os.close(lock)


def step_to_resume_from(run: RunDirectory) -> int | None:
    """Return the step of the newest whole checkpoint; None: there is none, so the run begins anew."""
    whole = manifests.newest_whole(run, sum_bytes=manifests.QUICK_BYTES)
    return None if whole is None else whole.step


def has_ended(run: RunDirectory) -> bool:
    """Tell whether nobody wants a run to go on: it had its last word before its engine started it again."""
    recorded = status_file.read(run.status)
    if recorded is None or recorded.state not in events.ENDED_STATES:
        return False
    starts = NodesFolder.of_run(run)
    return not (starts and starts[-1].read(TOLD_TO_END) is not None)


def say_started_again(run: RunDirectory, number: int, why: str, step: int | None) -> None:
    """Write an event, which is a mark on the curve, too.

    Args:
        number: how often this was done, from 1.
    """
    origin = (
        "from the beginning: nothing was saved yet"
        if step is None
        else f"from the checkpoint of step {step:,}"
    )
    message = f"{why} Restart {number}: it continues {origin}."
    cause = Cause(code="restarted", message=message, hint="No action is needed.")
    diagnosis.append_final_events(run, [("warning", cause.fields())])


def why_started_again(run: RunDirectory) -> str:
    """Return what the newest earlier start has said about it."""
    left = [folder for folder in NodesFolder.of_run(run) if (folder.path / f"{LEAVING}.json").exists()]
    said = left[-1].read(LEAVING) if left else None
    why = None if said is None else said.get("why")
    return why if isinstance(why, str) else NOT_SAID


def _touch(path: Path, text: str = "") -> None:
    """Write a small file; a full disk is waited for."""

    def write() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)

    diagnosis.retry_write(path.name, write)
