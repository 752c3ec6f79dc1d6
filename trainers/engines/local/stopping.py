"""Ends runs: by request, by force, and from the page if the supervisor fails.

`Escalation` is the rule by which a stop request that is not obeyed becomes SIGTERM, then SIGKILL. `RunGuard`
applies it inside the supervisor, together with the hang watch. `watch_for_stop` runs in the page and covers
the process that owns the run: a suspended supervisor is resumed; if the owner does not react, it is killed.
"""

from __future__ import annotations

import logging
import math
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import psutil

from trainers.contract import events, tickets
from trainers.contract import status as status_file
from trainers.contract.commands import Command, Incoming
from trainers.contract.config import Config
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import RANK_KILL_REQUESTED, Status
from trainers.engines.base import Engine, status_on
from trainers.engines.local import diagnosis
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.hang_watch import WORKING_BYTES_PER_S, HangWatch
from trainers.engines.local.stacks import Ranks
from trainers.files import private_files
from trainers.machine import processes, threads
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree
from trainers.watch import spool

Action = Literal["wait", "terminate", "kill"]

# Time from the stop request to SIGTERM. Including SIGTERM and the final check, a stop takes 15 s at most.
STOP_GRACE_S = 8.0
# Grace period for a run that begins to save late, and its deadline after the stop request.
SAVE_GRACE_S = 4.0
MAX_SAVE_START_S = 11.0
TERM_GRACE_S = 2.0
# Time for a script to save after SIGTERM.
SCRIPT_TERM_GRACE_S = 10.0
# A stop waits for a run that works (compiles, for example) until this time after the last sign of work, but
# not longer than the maximum after the request.
WORK_GRACE_S = 3.0
MAX_WORK_S = 120.0
# For a run that has reported its end and does not exit: limits from its last state, and from a stop request.
EXIT_GRACE_S = 30.0
STOPPED_EXIT_S = 9.5
STOPPED_EXIT_GRACE_S = 5.0
LATE_EXIT_GRACE_S = 1.5
# Time to sync a checkpoint to disk, in which its size does not grow.
FLUSH_S = 120.0


@dataclass(frozen=True, kw_only=True)
class CheckpointWrite:
    """The checkpoint that is being written: bytes so far, and whether a process does disk I/O."""

    num_bytes: int = 0
    is_at_disk: bool = False


class Escalation:
    """Escalates an ignored stop request, or an exit that hangs: SIGTERM, then SIGKILL.

    Reads no clock: callers pass all times (monotonic, in seconds). The deadlines move while the run saves or
    works.
    """

    def __init__(self, now: float) -> None:
        self.term_grace_s = TERM_GRACE_S
        self._requested_at: float | None = None
        self._stop_without_save_at: float | None = None
        self._changed_at = now
        self._saving = CheckpointWrite()
        self._size_changed_at = self._save_progress_at = 0.0
        self._last_work_at = -math.inf
        self._terminated_at: float | None = None
        # True if the system requested the end (SIGTERM).
        self.is_end_requested = False

    @property
    def is_stop_requested(self) -> bool:
        return self._requested_at is not None

    @property
    def is_forced(self) -> bool:
        return self._terminated_at is not None

    def request_stop(self, at: float, *, save: bool) -> None:
        """Record a stop request. Only the first request, and the first one without saving, set deadlines."""
        if self._requested_at is None:
            self._requested_at = at
        if not save and self._stop_without_save_at is None:
            self._stop_without_save_at = at

    def withdraw_stop(self) -> None:
        """Record that the run refused to stop and continues."""
        self._requested_at = self._stop_without_save_at = None
        self._last_work_at = -math.inf

    def state_changed(self, at: float) -> None:
        """Record that the run has changed its state."""
        self._changed_at = at

    def note_work(self, at: float) -> None:
        """Record that the run works, and so may still read the request."""
        if self._requested_at is not None and at < self._requested_at + MAX_WORK_S:
            self._last_work_at = at

    def depends_on_work(self, state: State, now: float) -> bool:
        """True if SIGTERM is due soon unless the run works, so that sampling its work is worthwhile."""
        if self._requested_at is None or self._stop_without_save_at is not None or self.is_forced:
            return False
        waited_s = now - self._requested_at
        return state in ("running", "paused") and STOP_GRACE_S - WORK_GRACE_S <= waited_s < MAX_WORK_S

    def is_overdue(self, now: float) -> bool:
        """True if the run should have obeyed the request by now."""
        return self._requested_at is not None and now > self._requested_at + STOP_GRACE_S

    def note_saving(self, saving: CheckpointWrite, at: float) -> None:
        """Record the progress of the checkpoint that is being written."""
        if saving.num_bytes != self._saving.num_bytes:
            self._size_changed_at = self._save_progress_at = at
        elif saving.num_bytes and saving.is_at_disk and at - self._size_changed_at < FLUSH_S:
            self._save_progress_at = at
        self._saving = saving

    def decide(self, state: State, now: float) -> Action:
        """Return the action for this moment; "terminate" is returned once."""
        if self._terminated_at is not None:
            return "kill" if now - self._terminated_at > self.term_grace_s else "wait"
        deadline = self._deadline(state)
        if deadline is None or (now <= deadline and not self.is_end_requested):
            return "wait"
        self._terminated_at = now
        return "terminate"

    def _deadline(self, state: State) -> float | None:
        if state not in events.LIVE_STATES:
            return self._exit_deadline()
        if self._requested_at is None:
            return None
        if state in ("queued", "starting"):
            return self._requested_at  # no step has been trained, so there is nothing to save
        if self._stop_without_save_at is not None:
            return self._stop_without_save_at + STOP_GRACE_S
        deadline = max(self._requested_at, self._save_progress_at) + STOP_GRACE_S
        if state != "stopping":
            return max(deadline, self._last_work_at + WORK_GRACE_S)
        # A run that was busy gets its time to save from the moment when it read the request.
        is_late = self._changed_at > self._last_work_at + WORK_GRACE_S
        latest = self._requested_at + MAX_SAVE_START_S if is_late else math.inf
        return max(deadline, min(self._changed_at + SAVE_GRACE_S, latest))

    def _exit_deadline(self) -> float:
        if self._requested_at is None:
            return self._changed_at + EXIT_GRACE_S
        if self._changed_at > self._requested_at + MAX_SAVE_START_S:
            # saving may have taken longer than the usual limit
            return self._changed_at + STOPPED_EXIT_GRACE_S
        return max(self._requested_at + STOPPED_EXIT_S, self._changed_at + LATE_EXIT_GRACE_S)


log = logging.getLogger(__name__)


def kill_rank(run: RunDirectory, status: Status, rank: int) -> None:
    """Kill the process of a rank (SIGKILL) on a user's request, after recording the request as an event.

    The event is written first because the diagnosis of the end reads it. A full disk does not prevent the
    kill.

    Raises:
        ValueError: If the run or the rank has no process on this machine.
    """
    supervisor = supervisor_of(run, status)
    process = None if supervisor is None else _process_of(run, supervisor, rank)
    if process is None:
        raise ValueError(f"rank {rank} of run {run.run_id} has no process on this machine at the moment")
    bits = ", with the same bits" if _repeats_bits(run) else ""
    message = f"Rank {rank} is killed (SIGKILL), as requested on this page."
    hint = f"The run fails now. Resume continues from its latest checkpoint{bits}."
    warning = Cause(code=RANK_KILL_REQUESTED, message=message, hint=hint, rank=rank)
    try:
        diagnosis.append_within_limits(run, [("warning", warning.fields())])
    except OSError as error:
        log.warning("could not record the event that rank %d is killed: %s", rank, explain(error))
    try:
        process.kill()  # psutil verifies that the pid was not reused
    except psutil.NoSuchProcess as error:
        raise ValueError(f"rank {rank} of run {run.run_id} has just ended") from error


def _repeats_bits(run: RunDirectory) -> bool:
    """True if a resume certainly gives the same bits."""
    try:
        config, ticket = run.read_config(), tickets.read_granted(run)
    except (OSError, ValueError):
        return False
    # Started from a terminal with device "auto", the run may use GPUs.
    kind = ticket.kind if ticket is not None else "cpu" if config.device == "cpu" else "cuda"
    return config.repeats_bits(kind)


def _process_of(run: RunDirectory, supervisor: psutil.Process, rank: int) -> psutil.Process | None:
    """Return the topmost process below the supervisor that writes to the rank's log, or None.

    The log identifies the rank. Loader workers write to it, too; they are excluded because their parent does.
    """
    log = run.rank_log(rank).resolve()
    try:
        descendants = supervisor.children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    candidates = {process.pid: process for process in descendants if processes.output_of(process.pid) == log}
    for process in candidates.values():
        try:
            if process.ppid() not in candidates and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            continue
    return None


# Maximum plausible delay of a reader that was suspended. A longer delay means that the clock was set.
MAX_COMMAND_AGE_S = 5.0


def command_age_s(request: Command) -> float:
    """Return the age of a request in seconds when it is read; 0 if it is unknown or in the future."""
    age_s = time.time() - request.time_unix_s
    return min(age_s, MAX_COMMAND_AGE_S) if request.time_unix_s > 0 and age_s > 0 else 0.0  # false for NaN


SAVING_SAMPLE_S = 0.5
WORK_SAMPLE_S = 1.5
NODE_LOST = "node_lost"
NODES_CUT_OFF = "nodes_cut_off"


class RunGuard:
    """Reads a run's stop requests and watches its ranks; `enforce` uses force at the deadlines.

    Attributes:
        escalation: The state of the stop requests.
        commands_offset: Offset in `commands.jsonl` at which this start of the run begins to read.
        unanswered: IDs of the stop requests that the run has not answered.
        fatal: Why the run was ended: a hang or a lost node; None otherwise.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._incoming = Incoming(run.commands)
        self.escalation = Escalation(time.monotonic())
        self._saving_sampled_at = self._work_sampled_at = 0.0
        self._io_bytes = 0
        self._ranks: Ranks | None = None
        self._watch: HangWatch | None = None
        self._waits_on_hang = False
        self._has_warned_of_wait = False
        self._script: Config | None = None
        self._script_polls_stop = False
        self.commands_offset = self._incoming.offset
        self.unanswered: list[str] = []
        self.fatal: Cause | None = None

    def watch_ranks(self, config: Config, ranks: Ranks) -> None:
        """Start watching these ranks."""
        self._ranks = ranks
        self._watch = HangWatch(self._run, config, ranks)
        self._waits_on_hang = config.on_hang == "wait"

    def request_end(self) -> None:
        """Record that the system requests the end: SIGTERM is sent without delay."""
        self.escalation.is_end_requested = True
        self.escalation.request_stop(time.monotonic(), save=False)

    def read_requests(self) -> None:
        """Record new stop requests. Each sets a deadline for the use of force."""
        for request in self._incoming.stops():
            self.unanswered.append(request.id)
            if self._script is None:
                self.escalation.request_stop(time.monotonic() - command_age_s(request), save=request.save)
            else:
                self._request_stop_of_script(request)

    def set_script(self, config: Config) -> None:
        """Note that the run is a user's script, which may not ask whether it should stop."""
        self._script = config
        self.escalation.term_grace_s = SCRIPT_TERM_GRACE_S

    def _request_stop_of_script(self, request: Command) -> None:
        """Give a script that asks, or saves, the usual time to stop; end any other one now."""
        control = spool.Control(self._run.path)
        self._script_polls_stop, saves = bool(control.get(spool.ASKS)), bool(control.get(spool.SAVES))
        may_stop = self._script_polls_stop or saves
        elapsed_s = command_age_s(request) if may_stop else STOP_GRACE_S
        self.escalation.request_stop(time.monotonic() - elapsed_s, save=saves)
        if not may_stop:
            self._note("state", {"state": "stopping", "reason": self.describe_force()})

    def describe_force(self) -> str:
        """Return how a script is, or was, ended by force."""
        reason = (
            "The script did not stop in time"
            if self._script_polls_stop
            else "The script does not call watch.should_stop()"
        )
        return f"{reason}. It gets SIGTERM, and SIGKILL after {SCRIPT_TERM_GRACE_S:.0f} s."

    def note_events(self, batch: Sequence[Mapping[str, Any]], state: State) -> None:
        """Record the run's new events, which followed `state`: answers to requests, and new states."""
        answered_ids = {event["id"] for event in batch if event["kind"] == "command"}
        self.unanswered = [request for request in self.unanswered if request not in answered_ids]
        *earlier_states, newest_state = [
            state,
            *(event["state"] for event in batch if event["kind"] == "state"),
        ]
        if "stopping" in earlier_states and newest_state in ("running", "paused"):
            self.escalation.withdraw_stop()  # the run could not save, so it refused the stop and continues
        if newest_state != state:
            self.escalation.state_changed(time.monotonic())

    def enforce(self, state: State, torchrun: subprocess.Popen[bytes], tree: ProcessTree) -> None:
        """Use force if a stop request has timed out, a node is lost, or the run hangs."""
        self._escalate(state, torchrun, tree)
        self._check_for_lost_node(tree)
        self._check_for_hang(state, tree)

    def _escalate(self, state: State, torchrun: subprocess.Popen[bytes], tree: ProcessTree) -> None:
        now = time.monotonic()
        if self.escalation.is_stop_requested and now - self._saving_sampled_at >= SAVING_SAMPLE_S:
            self._saving_sampled_at = now
            self.escalation.note_saving(self._sample_saving(), now)
        self._sample_work(state, now)
        action = self.escalation.decide(state, now)
        if action == "terminate":
            tree.update(now=True)
            torchrun.terminate()
            if self._script is not None and self._script.script_start == "python":
                # no launcher forwards the signal to ranks that the script itself has started
                tree.terminate()
            elif self._script is not None and self._ranks is not None:
                self._ranks.terminate_elsewhere()
        elif action == "kill":
            tree.kill()

    def _sample_saving(self) -> CheckpointWrite:
        num_bytes = self._run.bytes_being_saved()
        if num_bytes == 0 or self._ranks is None:
            return CheckpointWrite(num_bytes=num_bytes)
        efforts = [effort for rank in range(self._ranks.num_ranks) if (effort := self._ranks.effort(rank))]
        io_bytes_before, self._io_bytes = self._io_bytes, sum(effort.io_bytes for effort in efforts)
        is_moving = self._io_bytes - io_bytes_before >= WORKING_BYTES_PER_S * SAVING_SAMPLE_S
        return CheckpointWrite(
            num_bytes=num_bytes, is_at_disk=is_moving or any(effort.waits_for_disk for effort in efforts)
        )

    def _sample_work(self, state: State, now: float) -> None:
        """Sample whether the run works, if a deadline depends on this; warn once that the stop waits."""
        is_due = now - self._work_sampled_at >= WORK_SAMPLE_S
        if self._watch is None or not is_due or not self.escalation.depends_on_work(state, now):
            return
        self._work_sampled_at = now
        if not self._watch.is_at_work():
            return
        self.escalation.note_work(now)
        if self.escalation.is_overdue(now) and not self._has_warned_of_wait:
            self._has_warned_of_wait = True
            message = "The ranks are still computing a step, so Stop waits for them, at most two minutes."
            hint = "Stop without saving ends the run immediately."
            self._note("warning", Cause(code="stop_waits", message=message, hint=hint).fields())

    @property
    def has_other_machines(self) -> bool:
        return self._ranks is not None and self._ranks.num_machines > 1

    def network_failure(self) -> Cause | None:
        """Return a recently observed network failure between two machines, or None."""
        if self._ranks is None or not (message := self._ranks.network_failure()):
            return None
        hint = "Check the network between these machines."
        return Cause(code=NODES_CUT_OFF, message=message, hint=hint)

    def kill_reason(self, rank: int) -> str:
        """Return why the launcher of a rank's machine has killed it; empty if it has not."""
        return "" if self._ranks is None else self._ranks.kill_reason(rank)

    def _check_for_lost_node(self, tree: ProcessTree) -> None:
        """End a run on several machines when a machine stops reporting: its ranks never come back."""
        if self._ranks is None or self.fatal is not None or not (message := self._ranks.lost_node()):
            return
        hint = "Check that this machine, its network and the shared folder work."
        self.fatal = Cause(code=NODE_LOST, message=message, hint=hint)
        tree.kill()

    def _check_for_hang(self, state: State, tree: ProcessTree) -> None:
        """End a hanging run, or warn and keep waiting, as `on_hang` in its configuration says."""
        watch = self._watch
        if watch is None or state not in events.LIVE_STATES:
            return
        if self.escalation.is_stop_requested:
            # Keep following: `is_at_work` needs current watches.
            watch.follow()
            return
        hang = watch.check()
        if hang is not None and (network_failure := self.network_failure()) is not None:
            hang = replace(
                hang,
                code=network_failure.code,
                message=f"{network_failure.message} {hang.message}",
                hint=network_failure.hint,
            )
        if hang is not None and not self._waits_on_hang:
            self.fatal = hang
            tree.kill()
        elif hang is not None:
            hint = f"{hang.hint} This run keeps waiting if it hangs (setting on_hang); press Stop to end it."
            self._note("warning", replace(hang, hint=hint).fields())
        elif watch.has_passed:
            watch.forget()
            message = "The run continues: every rank sends heartbeats again."
            resumed = Cause(code="hang_over", message=message, hint="No action is needed.")
            self._note("warning", resumed.fields())

    def _note(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append an event between rank 0's events; if the disk is full, only print it to the log."""
        try:
            diagnosis.append_within_limits(self._run, [(kind, fields)])
        except OSError as error:
            text = fields.get("message", fields.get("reason"))
            print(f"an event could not be written: {text} ({explain(error)})", flush=True)


POLL_EVERY_S = 0.5
MAX_WATCH_S = 180.0
# The supervisor polls twenty times a second; only reading stacks delays it, by some seconds.
UNRESPONSIVE_AFTER_S = 9.0
UNRESPONSIVE_MESSAGE = "The supervisor of this run did not react to Stop and was killed."
KILLED_MESSAGE = "The run was killed with all its processes."


def watch_for_stop(
    engine: Engine,
    run: RunDirectory,
    read_progress: Callable[[Status], object],
    end: Callable[[Status], None],
    limit_s: float,
) -> None:
    """Watch a run that has just been sent a stop request. Returns immediately.

    Args:
        read_progress: Returns a value that changes while the process works that owns the run.
        end: Ends the run's processes and writes its final events. Called if that value does not change for
            `limit_s`.
    """

    def watch() -> None:
        started_at = changed_at = time.monotonic()
        last_progress: object = None
        try:
            while time.monotonic() - started_at < MAX_WATCH_S:
                status = status_on(engine, run)
                if status.state not in events.LIVE_STATES:
                    return
                progress = read_progress(status)
                if progress != last_progress:
                    last_progress, changed_at = progress, time.monotonic()
                if time.monotonic() - changed_at > limit_s:
                    log.warning("%s does not react to Stop: ending it by force", run.run_id)
                    end(status)
                    return
                time.sleep(POLL_EVERY_S)
        except psutil.NoSuchProcess:
            return  # it has ended, as requested
        except (OSError, ValueError) as error:
            log.warning("the stop of %s cannot be watched: %s", run.run_id, error)

    threads.run_once(f"stop-{run.path}", watch)


def supervisor_of(run: RunDirectory, status: Status) -> psutil.Process | None:
    """Return the process that owns the run, or None. The start time is compared because pids are reused."""
    if status.state not in events.LIVE_STATES or status.pid is None or not run.is_locked():
        return None
    private_files.require_ours(run.status)  # the status names the process
    try:
        process = psutil.Process(status.pid)
        return process if process.create_time() == status.pid_start_time else None
    except psutil.NoSuchProcess:
        return None


def supervisor_progress(run: RunDirectory, status: Status) -> object:
    """Resume a run's supervisor if it is suspended; return numbers that change whenever it does anything."""
    if (supervisor := supervisor_of(run, status)) is None:
        return None
    with supervisor.oneshot():
        if supervisor.status() == psutil.STATUS_STOPPED:
            log.warning("the supervisor of %s is suspended (SIGSTOP): resuming it", run.run_id)
            supervisor.resume()
        return supervisor.cpu_times(), supervisor.num_ctx_switches()


def write_forced_end(run: RunDirectory, status: Status, message: str, cause: Cause | None = None) -> None:
    """Write the final events and status of a run that was ended by force, unless it has an end.

    Args:
        status: Last known status.

    Raises:
        ValueError: If another process owns the run.
    """
    with run.owned():
        recorded = status_file.read(run.status) or status
        if recorded.ended_unix_s is None:
            diagnosis.record_end(run, recorded, "stopped", message, cause)
