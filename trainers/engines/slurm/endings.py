"""How Slurm jobs end."""

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
from trainers.engines.local import diagnosis
from trainers.engines.local.diagnosis import Cause
from trainers.machine.environment import now_unix_s
from trainers.machine.os_errors import explain


class SlurmError(OSError):
    """A Slurm command failed or timed out; the message is Slurm's."""


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
# The job's name is the last column because it may contain separators.
ACCOUNT_COLUMNS = ("State%40", "ExitCode", "NodeList", "End", "JobName%200")
ERROR_CODE = "slurm_job_ended"
CANCELLED = "The run's Slurm job was cancelled before it started."
# Name that the accounting database shows for a job that ended before its real name arrived.
_NO_NAME = "allocation"
_NO_NODES = ("", "(null)", "None assigned")

# States in which Slurm ended the job on request or by a rule, without an error.
_BY_RULE = {
    "DEADLINE": "Slurm ended the run's job at the job's deadline",
    "PREEMPTED": "Slurm ended the run's job in favour of a job of higher priority",
    "REVOKED": "Another cluster of the federation took over the run's job",
    "TIMEOUT": "Slurm ended the run's job at the job's time limit",
}
_FAILURES = {
    "BOOT_FAIL": ("Slurm could not launch the run's job on the nodes", "Ask an administrator."),
    "NODE_FAIL": ("Slurm reports that a node of the run's job failed", "Slurm did not restart the job."),
    "OUT_OF_MEMORY": (
        "Slurm reports that the run's job used more memory than it had requested",
        "Request more memory, or use a smaller batch.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The end of a job.

    Attributes:
        state: A terminal job state, such as CANCELLED.
        nodes: In Slurm's format; empty: it never started, or was waiting for a restart.
        name: Name of the job; empty: unknown.
        exit_code: Of the batch script, in Slurm's format (code:signal); empty: unknown.
        cancelled_by: User ID of the user who cancelled it, if accounting has recorded it.
    """

    state: str
    nodes: str
    name: str = ""
    exit_code: str = ""
    cancelled_by: int | None = None
    ended_unix_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The final state of a run, derived from the end of its job.

    Attributes:
        state: `lost` if Slurm cannot explain why the run did not record its end.
    """

    state: State
    message: str
    hint: str = ""


def parse_accounts(output: str) -> JobEnd | None:
    """Parse the last line of sacct; None if the job is missing or has not ended."""
    cells = output.strip().rpartition("\n")[2].split("|", len(ACCOUNT_COLUMNS) - 1)
    if len(cells) != len(ACCOUNT_COLUMNS):
        return None
    state, exit_code, nodes, end_time, name = cells
    state, _, user_id = state.partition(" by ")
    if state not in ENDED:
        return None
    return JobEnd(
        state=state,
        nodes="" if nodes in _NO_NODES else nodes,
        name="" if name == _NO_NAME else name,
        exit_code=exit_code,
        cancelled_by=int(user_id) if user_id.isdecimal() else None,
        ended_unix_s=float(end_time) if end_time.isdecimal() else None,
    )


def parse_controller(output: str) -> JobEnd | None:
    """Parse a line of `scontrol show job`; None if the job has not ended."""
    fields = dict(re.findall(r"(?:^| )(JobState|ExitCode|NodeList)=(\S*)", output))
    # A name may contain spaces; in the output UserId follows it.
    if name := re.search(r"(?:^| )JobName=(.*?) +UserId=", output):
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


def run_ending(end: JobEnd, status: Status, run: RunDirectory) -> Ending:
    """Return the ending of a run that did not record its end, from the end of its job.

    Args:
        status: Last status recorded in its folder.
    """
    has_started = status.started_unix_s is not None
    phase = " while it waited for a restart" if has_started else " before it started"
    phase_text = "" if end.nodes else phase
    if end.state == "CANCELLED":
        return Ending(
            state="stopped",
            message=f"The run's Slurm job was cancelled{phase_text}{_cancelled_by_text(end)}.",
        )
    if end.state in _BY_RULE:
        return Ending(state="stopped", message=f"{_BY_RULE[end.state]}{phase_text}.")
    if end.state in _FAILURES:
        message, hint = _FAILURES[end.state]
        nodes = f": {end.nodes}" if end.nodes else ""
        return Ending(state="failed", message=f"{message} ({end.state}{nodes}).", hint=hint)
    code = f" with exit code {end.exit_code.partition(':')[0]}" if end.exit_code else ""
    if not has_started:
        message = f"The run's Slurm job ended{code} on {end.nodes or 'no node'} before the run started."
        hint = (
            "logs/slurm.log has the output of the job. If this file is missing, check that the job's nodes "
            f"have the run's folder and the interpreter: srun --nodelist={end.nodes or 'NODE'} ls -d "
            f"{shlex.join([str(run.path), sys.executable])}."
        )
        return Ending(state="failed", message=message, hint=hint)
    message = f"The run's Slurm job ended{code} ({end.state}), but the run did not record its end."
    return Ending(state="lost", message=message, hint="logs/slurm.log has the output of the job.")


def unknown_ending(job_id: str, name: str = "") -> Ending:
    """Return the ending of a run whose job ID Slurm does not know, or assigns to another job.

    Args:
        name: Of the other job, for example if the run directory was copied from another cluster.
    """
    reason = (
        f"Slurm's job {job_id} is another job ({name})" if name else f"Slurm no longer knows job {job_id}"
    )
    return Ending(state="lost", message=f"{reason}, and the run's folder has no record of its end.")


def settle(run: RunDirectory, status: Status, ending: Ending, ended_unix_s: float | None) -> Status:
    """Return a run's status completed with the end of its job. Writes the status, because Slurm forgets old
    jobs.

    Nothing is written if another process owns the run or the folder belongs to another user.
    """
    is_saved = any(run.checkpoints.glob("step_*/manifest.json"))
    next_step = RESUME_HINT if is_saved else NOTHING_SAVED_HINT
    hint = " ".join(filter(None, (ending.hint, next_step)))
    is_good = ending.state == "stopped"
    completed = replace(
        status,
        state=ending.state,
        error=ending.message if is_good else f"{ending.message} {hint}",
        ended_unix_s=status.ended_unix_s or ended_unix_s or now_unix_s(),
    )
    if ending.state == "lost":
        return replace(completed, ended_unix_s=status.ended_unix_s)
    if run.is_locked():
        return completed
    try:
        lock = run.acquire_lock()
    except (OSError, ValueError):
        return completed
    try:
        recorded = status_file.read(run.status)
        if recorded is None or recorded.handle != status.handle or recorded.error is not None:
            # the run was resumed, or another page has written its status, during this call
            return recorded or completed
        run.write_status(completed)  # written first, so that the event is never appended twice
        if recorded.ended_unix_s is None:
            cause = None if is_good else Cause(code=ERROR_CODE, message=ending.message, hint=hint)
            # A rank may have recorded the end although its launcher was killed before writing the status.
            is_recorded = events.last_state(run.events) in events.ENDED_STATES
            final_events = diagnosis.make_final_events(
                ending.state, ending.message, cause, (), is_recorded=is_recorded
            )
            diagnosis.append_within_limits(run, final_events)
    except (OSError, ValueError) as error:
        print(f"the end of run {run.run_id} could not be written: {explain(error)}", flush=True)
    finally:
        os.close(lock)
    return completed


def _cancelled_by_text(end: JobEnd) -> str:
    """Return " by USER" if another user cancelled the job."""
    if end.cancelled_by is None or end.cancelled_by == os.geteuid():
        return ""
    try:
        return f" by {pwd.getpwuid(end.cancelled_by).pw_name}"
    except KeyError:
        return f" by user {end.cancelled_by}"
