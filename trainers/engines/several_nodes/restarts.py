"""How a start of a run on several machines ends, and whether its engine starts it again.

That is so after a time limit, a job of higher priority, or a node that failed. Whoever learns of it first
writes down why, in the folder of that start. When the start is over, and it was to go on, a file there asks
the engine for the next one, which resumes from the newest whole checkpoint.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from trainers.contract import events, manifests
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.local import final_events
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.engines.local.stopping.run_guard import NODE_LOST
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.machine.clock import now_unix_s

LEAVING = "leaving"
TOLD_TO_END = "told-to-end"
# For a shell script, so plain files: that the job is to be started again; for how long the rest may end.
AGAIN = "again"
OVER = "over"
NOT_SAID = "The job was started again: a node failed, or a job of higher priority took its nodes."
LOST_A_NODE = "One of its nodes was lost."


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


def close_start(
    run: RunDirectory,
    folder: NodesFolder,
    restarts_left: int,
    cause: Cause | None,
    *,
    by_system: bool,
    others_end_within_s: float,
) -> None:
    """Say that a start of a run is over, and ask for the next one where the run is to go on.

    Args:
        cause: why it has failed, where it has.
        by_system: it was ended by SIGTERM. Where Slurm has taken its nodes for another job, it starts the run
            again by itself; where somebody has cancelled the job, it does not.
    """
    if by_system:
        folder.write(TOLD_TO_END, {})
    why = _why_again(run, folder, cause) if restarts_left > 0 else None
    if why is not None:
        recorded = status_file.read(run.status)
        assert recorded is not None, "its supervisor has written it"
        waiting = replace(recorded, state="queued", error=None, ended_unix_s=None)
        final_events.say(
            run, [("state", {"state": "queued", "reason": f"{why} It goes on when there is room."})]
        )
        final_events.insist("status.json", lambda: run.write_status(waiting))
        _touch(folder.path / AGAIN)
    folder.order_end(within_s=others_end_within_s)
    _touch(folder.path / OVER, f"{others_end_within_s:.0f}\n")


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
        final_events.say(run, [("state", {"state": "stopped", "reason": message})])
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
    final_events.say(run, [("warning", cause.fields())])


def why_started_again(run: RunDirectory) -> str:
    """Return what the newest earlier start has said about it."""
    left = [folder for folder in NodesFolder.of_run(run) if (folder.path / f"{LEAVING}.json").exists()]
    said = left[-1].read(LEAVING) if left else None
    why = None if said is None else said.get("why")
    return why if isinstance(why, str) else NOT_SAID


def _why_again(run: RunDirectory, folder: NodesFolder, cause: Cause | None) -> str | None:
    if cause is not None and cause.code == NODE_LOST:
        folder.write(LEAVING, {"why": LOST_A_NODE})
        return LOST_A_NODE
    recorded, said = status_file.read(run.status), folder.read(LEAVING)
    if recorded is None or recorded.state != "stopped" or said is None:
        return None
    return str(said.get("why", NOT_SAID))


def _touch(path: Path, text: str = "") -> None:
    """Write a small file; a full disk is waited for."""

    def write() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)

    final_events.insist(path.name, write)
