"""How a job ended, as Slurm's accounts or its controller tell, and what that means for the run."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sys
from dataclasses import dataclass, replace

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import NOTHING_SAVED_HINT, RESUME_HINT, Status
from trainers.engines.local import final_events
from trainers.engines.local.diagnosis.autopsy import Cause
from trainers.machine.clock import now_unix_s
from trainers.machine.os_errors import explain

# Terminal job states: no process remains.
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
# The name is last: it may contain separators.
ACCOUNT_COLUMNS = ("State%40", "ExitCode", "NodeList", "End", "JobName%200")
CODE = "slurm_job_ended"
CANCELLED = "Its Slurm job was cancelled before it began."
# The accounts' name of a job that ended before they heard its own.
_NO_NAME = "allocation"
_NO_NODES = ("", "(null)", "None assigned")

# Slurm ended the job because it was asked to or because of a rule: nothing is broken.
_BY_RULE = {
    "DEADLINE": "Slurm ended its job at the job's deadline",
    "PREEMPTED": "Slurm ended its job to make room for a job of higher priority",
    "REVOKED": "Another cluster of the federation took its Slurm job",
    "TIMEOUT": "Slurm ended its job at the job's time limit",
}
_BROKEN = {
    "BOOT_FAIL": ("Slurm could not launch its job on the nodes", "Ask an administrator."),
    "NODE_FAIL": ("Slurm reports that a node of its job failed", "Slurm did not start the job again."),
    "OUT_OF_MEMORY": (
        "Slurm reports that its job used more memory than it had asked for",
        "Ask for more memory, or take a smaller batch.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of a job.

    Attributes:
        state: a terminal job state, such as CANCELLED.
        nodes: as Slurm writes them; empty: it never began, or it waited to be started again.
        name: of the job; empty: not known.
        exit_code: of the batch script, as Slurm writes it (code:signal); empty: not known.
        cancelled_by: the user number of the user who cancelled it, where the accounts have it.
    """

    state: str
    nodes: str
    name: str = ""
    exit_code: str = ""
    cancelled_by: int | None = None
    ended_unix_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the end of a job means for its run.

    Attributes:
        state: `lost` if Slurm does not tell why the run wrote no end.
    """

    state: State
    message: str
    hint: str = ""


def from_accounts(said: str) -> JobEnd | None:
    """Parse the newest line of sacct; None if the job is not there or has not ended."""
    cells = said.strip().rpartition("\n")[2].split("|", len(ACCOUNT_COLUMNS) - 1)
    if len(cells) != len(ACCOUNT_COLUMNS):
        return None
    state, exit_code, nodes, ended, name = cells
    state, _, by = state.partition(" by ")
    if state not in ENDED:
        return None
    return JobEnd(
        state=state,
        nodes="" if nodes in _NO_NODES else nodes,
        name="" if name == _NO_NAME else name,
        exit_code=exit_code,
        cancelled_by=int(by) if by.isdecimal() else None,
        ended_unix_s=float(ended) if ended.isdecimal() else None,
    )


def from_controller(said: str) -> JobEnd | None:
    """Parse a line of `scontrol show job`; None if the job has not ended."""
    fields = dict(re.findall(r"(?:^| )(JobState|ExitCode|NodeList)=(\S*)", said))
    # A name may contain spaces; in the output UserId follows it.
    if name := re.search(r"(?:^| )JobName=(.*?) +UserId=", said):
        fields["JobName"] = name[1]
    state, nodes = fields.get("JobState", ""), fields.get("NodeList", "")
    if state not in ENDED:
        return None
    return JobEnd(
        state=state,
        nodes="" if nodes in _NO_NODES else nodes,
        name=fields.get("JobName", ""),
        exit_code=fields.get("ExitCode", ""),
    )


def of_run(end: JobEnd, status: Status, run: RunDirectory) -> Ending:
    """Return what the end of its job means for a run that wrote no end itself.

    Args:
        status: what its folder has recorded last.
    """
    has_run_before = status.started_unix_s is not None
    if end.nodes:
        when = ""
    else:
        when = " while it waited to be started again" if has_run_before else " before it began"
    if end.state == "CANCELLED":
        return Ending(state="stopped", message=f"Its Slurm job was cancelled{when}{_by(end)}.")
    if end.state in _BY_RULE:
        return Ending(state="stopped", message=f"{_BY_RULE[end.state]}{when}.")
    if end.state in _BROKEN:
        message, hint = _BROKEN[end.state]
        nodes = f": {end.nodes}" if end.nodes else ""
        return Ending(state="failed", message=f"{message} ({end.state}{nodes}).", hint=hint)
    code = f" with exit code {end.exit_code.partition(':')[0]}" if end.exit_code else ""
    if not has_run_before:
        message = f"Its Slurm job ended{code} on {end.nodes or 'no node'}, and nothing of the run had begun."
        hint = (
            "logs/slurm.log has what the job printed. If there is none, see whether its nodes have the run's "
            f"folder and the interpreter: srun --nodelist={end.nodes or 'NODE'} "
            f"ls -d {shlex.join([str(run.path), sys.executable])}."
        )
        return Ending(state="failed", message=message, hint=hint)
    message = f"Its Slurm job ended{code} ({end.state}), but the run wrote no end."
    return Ending(state="lost", message=message, hint="logs/slurm.log has what the job printed.")


def unknown(job_id: str, name: str = "") -> Ending:
    """Return the ending of a run whose job Slurm has forgotten, or whose number another job has.

    Args:
        name: of that other job, as after a run directory was copied from another cluster.
    """
    why = (
        f"Slurm's job {job_id} is another one ({name})"
        if name
        else f"Slurm does not know job {job_id} any more"
    )
    return Ending(state="lost", message=f"{why}, and nothing in the run's folder says how it ended.")


def settled(run: RunDirectory, status: Status, ending: Ending, ended_unix_s: float | None) -> Status:
    """Return a run's status with the end of its job, and write it, so that it outlives Slurm's memory.

    Nothing is written if another process owns the run or its folder is another user's.
    """
    is_saved = any(run.checkpoints.glob("step_*/manifest.json"))
    next_step = RESUME_HINT if is_saved else NOTHING_SAVED_HINT
    hint = " ".join(filter(None, (ending.hint, next_step)))
    is_good = ending.state == "stopped"
    found = replace(
        status,
        state=ending.state,
        error=ending.message if is_good else f"{ending.message} {hint}",
        ended_unix_s=status.ended_unix_s or ended_unix_s or now_unix_s(),
    )
    if ending.state == "lost":
        return replace(found, ended_unix_s=status.ended_unix_s)
    if run.is_locked():
        return found
    try:
        lock = run.acquire_lock()
    except (OSError, ValueError):
        return found
    try:
        recorded = status_file.read(run.status)
        if recorded is None or recorded.handle != status.handle or recorded.error is not None:
            return recorded or found  # resumed meanwhile, or written by another page
        run.write_status(found)  # first: once it is there, no event is written twice
        if recorded.ended_unix_s is None:
            cause = None if is_good else Cause(code=CODE, message=ending.message, hint=hint)
            # A rank may have recorded the end although its launcher was killed before it could.
            is_said = events.last_state(run.events) in events.ENDED_STATES
            words = final_events.of_an_end(ending.state, ending.message, cause, (), is_said=is_said)
            final_events.append(run, words)
    except (OSError, ValueError) as error:
        print(f"the end of run {run.run_id} could not be written: {explain(error)}", flush=True)
    finally:
        os.close(lock)
    return found


def _by(end: JobEnd) -> str:
    """Return who cancelled a job, if it was another user."""
    if end.cancelled_by is None or end.cancelled_by == os.geteuid():
        return ""
    try:
        return f" by {pwd.getpwuid(end.cancelled_by).pw_name}"
    except KeyError:
        return f" by user {end.cancelled_by}"
