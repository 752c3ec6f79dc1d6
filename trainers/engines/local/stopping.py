"""Ends runs: by request, by force, and from the page if the supervisor fails.

`Escalation` is the rule by which a stop request that is not obeyed becomes SIGTERM, then SIGKILL. `RunGuard`
applies it inside the supervisor, together with the hang watch. `watch_supervisor` runs in the page and covers
the supervisor itself: it resumes a suspended supervisor, and kills one that does not react.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from trainers.contract import events, tickets
from trainers.contract.config import Config
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import NOTHING_SAVED_HINT, RANK_KILL_ASKED, RESUME_HINT, Status
from trainers.engines.local import diagnosis
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.hang_watch import WORKING_BYTES_PER_S, HangWatch
from trainers.engines.local.stacks import Ranks
from trainers.files import private_files
from trainers.files.json_files import parse_json, read_lines
from trainers.files.private_files import ForeignFileError, open_own
from trainers.machine import processes, threads
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree
from trainers.watch import spool

Action = Literal["wait", "terminate", "kill"]

# Time from the stop request to SIGTERM. Including SIGTERM and the final check, a stop takes 15 s at most.
STOP_GRACE_S = 8.0
# Grace period for a run that begins to save late, and its deadline after the stop request.
SAVE_GRACE_S = 4.0
LATEST_S = 11.0
TERM_GRACE_S = 2.0
# Time for a script to save after SIGTERM.
SCRIPT_TERM_GRACE_S = 10.0
# A stop waits for a run that works (compiles, for example) until this time after the last sign of work, but
# not longer than the maximum after the request.
LIFE_GRACE_S = 3.0
LONGEST_WORK_S = 120.0
# For a run that has reported its end and does not exit: limits from its last state, and from a stop request.
EXIT_GRACE_S = 30.0
STOPPED_EXIT_S = 9.5
STOPPED_EXIT_GRACE_S = 5.0
LATE_EXIT_GRACE_S = 1.5
# Time to sync a checkpoint to disk, in which its size does not grow.
FLUSH_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Saving:
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
        self._unsaved_at: float | None = None
        self._changed_at = now
        self._saving = Saving()
        self._grown_at = self._moved_at = 0.0
        self._alive_at = -math.inf
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
        if not save and self._unsaved_at is None:
            self._unsaved_at = at

    def take_back(self) -> None:
        """Record that the run refused to stop and continues."""
        self._requested_at = self._unsaved_at = None
        self._alive_at = -math.inf

    def state_changed(self, at: float) -> None:
        """Record that the run has changed its state."""
        self._changed_at = at

    def note_life(self, at: float) -> None:
        """Record that the run works, and so may still read the request."""
        if self._requested_at is not None and at < self._requested_at + LONGEST_WORK_S:
            self._alive_at = at

    def depends_on_life(self, state: State, now: float) -> bool:
        """True if SIGTERM is due soon unless the run works, so that sampling its work is worthwhile."""
        if self._requested_at is None or self._unsaved_at is not None or self.is_forced:
            return False
        since_s = now - self._requested_at
        return state in ("running", "paused") and STOP_GRACE_S - LIFE_GRACE_S <= since_s < LONGEST_WORK_S

    def is_overdue(self, now: float) -> bool:
        """True if the run should have obeyed the request by now."""
        return self._requested_at is not None and now > self._requested_at + STOP_GRACE_S

    def note_saving(self, saving: Saving, at: float) -> None:
        """Record the progress of the checkpoint that is being written."""
        if saving.num_bytes != self._saving.num_bytes:
            self._grown_at = self._moved_at = at
        elif saving.num_bytes and saving.is_at_disk and at - self._grown_at < FLUSH_S:
            self._moved_at = at
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
        if self._unsaved_at is not None:
            return self._unsaved_at + STOP_GRACE_S
        deadline = max(self._requested_at, self._moved_at) + STOP_GRACE_S
        if state != "stopping":
            return max(deadline, self._alive_at + LIFE_GRACE_S)
        # A run that was busy gets its time to save from the moment when it read the request.
        is_late = self._changed_at > self._alive_at + LIFE_GRACE_S
        latest = self._requested_at + LATEST_S if is_late else math.inf
        return max(deadline, min(self._changed_at + SAVE_GRACE_S, latest))

    def _exit_deadline(self) -> float:
        if self._requested_at is None:
            return self._changed_at + EXIT_GRACE_S
        if self._changed_at > self._requested_at + LATEST_S:
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
    warning = {
        "code": RANK_KILL_ASKED,
        "message": f"Rank {rank} is killed (SIGKILL), as requested on this page.",
        "hint": f"The run now fails. Resume continues from its latest checkpoint{bits}.",
        "rank": rank,
        "traceback": None,
    }
    try:
        diagnosis.append_within_limits(run, [("warning", warning)])
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
        below = supervisor.children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    found = {process.pid: process for process in below if processes.output_of(process.pid) == log}
    for process in found.values():
        try:
            if process.ppid() not in found and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            continue
    return None


# Maximum plausible delay of a reader that was suspended. A longer delay means that the clock was set.
MOST_LATE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """A user's request to stop the run; `late_s`: age of the request when it was read."""

    id: str
    save: bool
    late_s: float


class StopRequests:
    """Reads the commands that are appended to a file after `offset`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = path.stat().st_size if path.exists() else 0
        self._has_reported_foreign_file = False

    def read(self) -> list[StopRequest]:
        """Return the stop requests since the last call."""
        try:
            with open_own(self._path) as file:
                lines, self.offset = read_lines(file, self.offset)
        except FileNotFoundError:
            return []
        except ForeignFileError as error:
            if not self._has_reported_foreign_file:
                print(f"commands cannot be read: {error}", flush=True)
            self._has_reported_foreign_file = True
            return []
        return [found for line in lines.split(b"\n") if (found := _parse_stop_request(line)) is not None]


def _parse_stop_request(line: bytes) -> StopRequest | None:
    try:
        command = parse_json(line)
        if command["name"] != "stop":
            return None
        late_s = time.time() - float(command.get("time_unix_s", time.time()))
        return StopRequest(
            id=str(command.get("id", "")),
            save=bool(command.get("save", True)),
            late_s=min(late_s, MOST_LATE_S) if late_s > 0 else 0.0,  # false for NaN
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


SAVING_SAMPLE_S = 0.5
LIFE_SAMPLE_S = 1.5
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
        self._requests = StopRequests(run.commands)
        self.escalation = Escalation(time.monotonic())
        self._saving_sampled_at = self._life_sampled_at = 0.0
        self._io_bytes = 0
        self._ranks: Ranks | None = None
        self._watch: HangWatch | None = None
        self._waits_on_hang = False
        self._has_warned_of_wait = False
        self._script: Config | None = None
        self._was_asked = False
        self.commands_offset = self._requests.offset
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
        for request in self._requests.read():
            self.unanswered.append(request.id)
            if self._script is None:
                self.escalation.request_stop(time.monotonic() - request.late_s, save=request.save)
            else:
                self._request_stop_of_script(request)

    def watch_script(self, config: Config) -> None:
        """Note that the run is a user's script, which may not ask whether it should stop."""
        self._script = config
        self.escalation.term_grace_s = SCRIPT_TERM_GRACE_S

    def _request_stop_of_script(self, request: StopRequest) -> None:
        """Give a script that polls for a stop, or is saving, the usual time; end any other script now."""
        control = spool.Control(self._run.path)
        self._was_asked, saves = bool(control.get(spool.ASKS)), bool(control.get(spool.SAVES))
        may_obey = self._was_asked or saves
        late_s = request.late_s if may_obey else STOP_GRACE_S
        self.escalation.request_stop(time.monotonic() - late_s, save=saves)
        if not may_obey:
            self._note("state", {"state": "stopping", "reason": self.force_text()})

    def force_text(self) -> str:
        """Return how a script is, or was, ended by force."""
        why = (
            "The script did not stop in time"
            if self._was_asked
            else "The script does not call watch.should_stop()"
        )
        return f"{why}. It gets SIGTERM, and SIGKILL after {SCRIPT_TERM_GRACE_S:.0f} s."

    def note_events(self, batch: Sequence[Mapping[str, Any]], state: State) -> None:
        """Record the run's new events, which followed `state`: answers to requests, and new states."""
        answered = {event["id"] for event in batch if event["kind"] == "command"}
        self.unanswered = [request for request in self.unanswered if request not in answered]
        *earlier, newest = [state, *(event["state"] for event in batch if event["kind"] == "state")]
        if "stopping" in earlier and newest in ("running", "paused"):
            self.escalation.take_back()  # the run could not save, so it refused the stop and continues
        if newest != state:
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
        self._sample_life(state, now)
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

    def _sample_saving(self) -> Saving:
        num_bytes = self._run.bytes_being_saved()
        if num_bytes == 0 or self._ranks is None:
            return Saving(num_bytes=num_bytes)
        efforts = [found for rank in range(self._ranks.num_ranks) if (found := self._ranks.effort(rank))]
        before, self._io_bytes = self._io_bytes, sum(found.io_bytes for found in efforts)
        is_moving = self._io_bytes - before >= WORKING_BYTES_PER_S * SAVING_SAMPLE_S
        return Saving(
            num_bytes=num_bytes, is_at_disk=is_moving or any(found.waits_for_disk for found in efforts)
        )

    def _sample_life(self, state: State, now: float) -> None:
        """Sample whether the run works, if a deadline depends on this; warn once that the stop waits."""
        is_due = now - self._life_sampled_at >= LIFE_SAMPLE_S
        if self._watch is None or not is_due or not self.escalation.depends_on_life(state, now):
            return
        self._life_sampled_at = now
        if not self._watch.is_at_work():
            return
        self.escalation.note_life(now)
        if self.escalation.is_overdue(now) and not self._has_warned_of_wait:
            self._has_warned_of_wait = True
            self._note("warning", diagnosis.stop_waits().fields())

    @property
    def has_other_machines(self) -> bool:
        return self._ranks is not None and self._ranks.num_machines > 1

    def cut_off(self) -> Cause | None:
        """Return a recently observed network failure between two machines, or None."""
        if self._ranks is None or not (words := self._ranks.cut_off()):
            return None
        hint = "Check the network between these machines."
        return Cause(code=NODES_CUT_OFF, message=words, hint=hint)

    def why_ended(self, rank: int) -> str:
        """Return why the launcher of a rank's machine has killed it; empty if it has not."""
        return "" if self._ranks is None else self._ranks.why_ended(rank)

    def _check_for_lost_node(self, tree: ProcessTree) -> None:
        """End a run on several machines when a machine stops reporting: its ranks never come back."""
        if self._ranks is None or self.fatal is not None or not (lost := self._ranks.lost_node()):
            return
        hint = "Check that this machine, its network and the shared folder work."
        self.fatal = Cause(code=NODE_LOST, message=lost, hint=hint)
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
        found = watch.check()
        if found is not None and (cut := self.cut_off()) is not None:
            found = replace(found, code=cut.code, message=f"{cut.message} {found.message}", hint=cut.hint)
        if found is not None and not self._waits_on_hang:
            self.fatal = found
            tree.kill()
        elif found is not None:
            hint = f"{found.hint} This run waits on a hang (setting on_hang); press Stop to end it."
            self._note("warning", replace(found, hint=hint).fields())
        elif watch.has_passed:
            watch.forget()
            message = "The run continues: every rank sends heartbeats again."
            over = Cause(code="hang_over", message=message, hint="No action is needed.")
            self._note("warning", over.fields())

    def _note(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append an event between rank 0's events; if the disk is full, only print it to the log."""
        try:
            diagnosis.append_within_limits(self._run, [(kind, fields)])
        except OSError as error:
            words = fields.get("message", fields.get("reason"))
            print(f"an event could not be written: {words} ({explain(error)})", flush=True)


POLL_EVERY_S = 0.25
# Time without a sign of life after which a supervisor counts as stuck. It polls 20 times a second; only
# reading stacks delays it, by a few seconds.
DEAF_AFTER_S = 9.0
STAYS_STOPPED_S = 1.5
WATCHED_S = 60.0

DEAF_MESSAGE = "The supervisor of this run did not react to Stop and was killed."
KILLED_MESSAGE = "The run was killed with all its processes."

# Returns a run's actual state.
ReadStatus = Callable[[RunDirectory], Status]
WatchAction = Literal["wait", "continue", "kill"]

# Time of the latest stop request of each run.
_asked_at: dict[Path, float] = {}


class SupervisorWatchdog:
    """The rule for a supervisor that may be suspended or stuck."""

    def __init__(self, now: float) -> None:
        self._signs_of_life: tuple[float, ...] = ()
        self._alive_at = now
        self._continued_at: float | None = None

    def judge(self, signs_of_life: tuple[float, ...], now: float, *, is_stopped: bool) -> WatchAction:
        """Record an observation; return the action for this moment.

        A suspended supervisor is resumed once. It is killed if it is suspended again, or shows no sign of
        life for `DEAF_AFTER_S`.

        Args:
            signs_of_life: Numbers that change whenever its process does anything.
        """
        if signs_of_life != self._signs_of_life:
            self._signs_of_life, self._alive_at = signs_of_life, now
        if not is_stopped:
            return "kill" if now - self._alive_at > DEAF_AFTER_S else "wait"
        if self._continued_at is None:
            self._continued_at = now
            return "continue"
        return "kill" if now - self._continued_at > STAYS_STOPPED_S else "wait"


def watch_supervisor(run: RunDirectory, read_status: ReadStatus) -> None:
    """Watch the supervisor of a run that has just been sent a stop request. Returns immediately."""
    _asked_at[run.path] = time.monotonic()
    threads.run_once(f"stop-{run.path}", lambda: _watch(run, read_status))


def _watch(run: RunDirectory, read_status: ReadStatus) -> None:
    watchdog = SupervisorWatchdog(time.monotonic())
    try:
        while time.monotonic() - _asked_at[run.path] < WATCHED_S:
            status = read_status(run)
            supervisor = supervisor_of(run, status)
            if supervisor is None:
                return
            with supervisor.oneshot():
                times, switches = supervisor.cpu_times(), supervisor.num_ctx_switches()
                is_stopped = supervisor.status() == psutil.STATUS_STOPPED
            signs = (times.user, times.system, *map(float, switches))
            action = watchdog.judge(signs, time.monotonic(), is_stopped=is_stopped)
            if action == "continue":
                log.warning("the supervisor of %s was suspended (SIGSTOP): resuming it", run.run_id)
                supervisor.resume()
            elif action == "kill":
                log.warning("the supervisor of %s does not react: killing it", run.run_id)
                end_supervisor(run, status, supervisor, read_status, DEAF_MESSAGE)
                return
            time.sleep(POLL_EVERY_S)
    except psutil.NoSuchProcess:
        return  # it has ended, as requested
    except (private_files.ForeignFileError, FileNotFoundError) as error:
        log.warning("the supervisor of %s cannot be watched: %s", run.run_id, error)


def supervisor_of(run: RunDirectory, status: Status) -> psutil.Process | None:
    """Return the process that owns the run, or None. The start time is compared because pids are reused."""
    if status.state not in events.LIVE_STATES or status.pid is None or not run.is_locked():
        return None
    private_files.require_ours(run.status)  # the status names the process
    process = psutil.Process(status.pid)
    return process if process.create_time() == status.pid_start_time else None


def end_supervisor(
    run: RunDirectory, status: Status, supervisor: psutil.Process, read_status: ReadStatus, message: str
) -> None:
    """Kill a supervisor and its descendants, then write the final events in its place."""
    ProcessTree(supervisor.pid).kill()
    if read_status(run).state != "lost":
        return  # the run recorded its end itself
    hint = RESUME_HINT if run.list_checkpoints() else NOTHING_SAVED_HINT
    cause = Cause(code="stop_forced", message=message, hint=hint)
    lock = run.acquire_lock()
    try:
        diagnosis.record_end(run, status, "stopped", message, cause)
    finally:
        os.close(lock)
