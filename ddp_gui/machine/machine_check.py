"""Starts, follows and ends the check of this machine: a separate process, one at a time."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.contract.check_files import CANCEL_S, JOB_LIMIT_S, CheckFiles, longest_check_s
from trainers.files.plain_files import REPOSITORY, temporary_folder
from trainers.machine import environment, lifeline
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree

POLL_S = 0.1
# Time limit for a check that itself hangs; every job has its own limit.
LIMIT_S = longest_check_s(JOB_LIMIT_S)
MAX_ERROR_LENGTH = 500

State = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass
class RunningCheck:
    """A check that this page has started.

    Attributes:
        gpus: GPUs that it may use, by UUID.
        except_gpus: GPUs that it must not use, because the queue has allocated them.
        state: the latest state; None before the first.
    """

    check_id: str
    gpus: frozenset[str] = frozenset()
    except_gpus: tuple[str, ...] = ()
    started_unix_s: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    took_s: float | None = None
    process: subprocess.Popen[bytes] | None = None
    state: State | None = None
    error: str | None = None
    is_cancel_requested: bool = False
    has_ended: threading.Event = field(default_factory=threading.Event)

    def to_json(self) -> State:
        """Return the check as JSON values for the page and scripts."""
        state = self.state or {
            "check_id": self.check_id,
            "state": "running",
            "now": None,
            "device": None,
            "device_kind": None,
            "num_ranks": None,
            "had_company": False,
            "started_unix_s": self.started_unix_s,
            "took_s": 0.0,
            "compared_with_unix_s": None,
            "summary": "",
            "versions": {},
            "findings": [],
        }
        has_ended = self.has_ended.is_set()
        if state["state"] == "running":
            # Compute the elapsed time, because the process prints a state only when a job begins or ends.
            took_s = time.monotonic() - self.started if self.took_s is None else self.took_s
            state = state | {"took_s": took_s}
            if has_ended:
                state = state | {"state": "cancelled" if self.error is None else "failed", "now": None}
        is_being_cancelled = self.is_cancel_requested and not has_ended
        return state | {"is_being_cancelled": is_being_cancelled, "error": self.error}


class MachineChecks:
    """The running check of this machine, and the latest checks, which are stored next to the runs.

    Args:
        program: the command with its options; tests replace it.
    """

    def __init__(self, runs_dir: Path, program: Sequence[str] = ("-m", "trainers.check_machine")) -> None:
        self._runs_dir = runs_dir.resolve()
        self._files = CheckFiles(self._runs_dir)
        self._program = tuple(program)
        self._newest: RunningCheck | None = None
        self._lock = threading.Lock()

    def newest_id(self) -> str | None:
        """Return the id of the latest check, started by this page or from a shell, or None."""
        if (running := self._running()) is not None:
            return running.check_id
        stored = self._read_stored()
        if stored:
            return str(stored[-1]["check_id"])
        return None if self._newest is None else self._newest.check_id

    @property
    def is_running(self) -> bool:
        """True if a check that this page has started is running."""
        return self._running() is not None

    def gpus(self) -> frozenset[str]:
        """Return the GPUs, by UUID, that the running check may use; empty without a check.

        The queue allocates none of them until the check ends, or reports that it trains on the CPU, because
        the check does not report which GPUs it uses.
        """
        running = self._running()
        if running is None or (running.state is not None and running.state["device_kind"] == "cpu"):
            return frozenset()
        return running.gpus

    def processes(self) -> dict[int, float]:
        """Return all processes of the running check, with their start times."""
        running = self._running()
        if running is None or running.process is None:
            return {}
        tree = ProcessTree(running.process.pid)
        tree.update(now=True)
        return tree.start_times()

    def start(self, gpus: Collection[str] = (), except_gpus: Collection[str] = ()) -> RunningCheck:
        """Start a check.

        Args:
            gpus: GPUs that it may use, by UUID.
            except_gpus: GPUs that it must not use, because the queue has allocated them.
        Raises:
            ValueError: if this page already runs a check.
        """
        with self._lock:
            if self._running() is not None:
                raise ValueError(
                    "a check of this machine is already running: wait until it ends, or cancel it"
                )
            check = RunningCheck(
                check_id=uuid.uuid4().hex[:12], gpus=frozenset(gpus), except_gpus=tuple(except_gpus)
            )
            self._newest = check
        # The thread must outlive the check, because the kernel kills its processes when this thread ends.
        threading.Thread(target=self._follow, args=(check,), name="machine-check", daemon=True).start()
        return check

    def find(self, check_id: Any) -> State:
        """Return the running check or a stored one, by its id.

        Raises:
            ValueError: if it does not exist.
        """
        if self._newest is not None and self._newest.check_id == check_id:
            return self._newest.to_json()
        for check in self._read_stored():
            if check["check_id"] == check_id:
                findings = [_without_log(finding) for finding in check["findings"]]
                return check | {"is_being_cancelled": False, "error": None, "findings": findings}
        raise ValueError(f"check_id is {str(check_id)[:80]!r}; allowed: an id that check_machine returned")

    def cancel(self, check_id: Any) -> State:
        """Cancel a check, and return its state without waiting. Does nothing if the check has ended.

        Raises:
            ValueError: if it does not exist, or was started outside of this page.
        """
        running = self._running()
        if running is not None and running.check_id == check_id:
            running.is_cancel_requested = True
        return self.find(check_id)

    def report(self, check_id: str) -> Path:
        """Return the file for a bug report of a stored check.

        Raises:
            ValueError: if it does not exist.
        """
        path = self._files.report(check_id)
        if not path.is_file():
            raise ValueError(
                f"no report of check {check_id} exists: the check did not finish, or newer checks replaced it"
            )
        return path

    def close(self) -> None:
        """Cancel a running check and wait until all its processes have ended. Called when the page ends."""
        if (running := self._running()) is not None:
            running.is_cancel_requested = True
            running.has_ended.wait()

    def _running(self) -> RunningCheck | None:
        newest = self._newest
        return None if newest is None or newest.has_ended.is_set() else newest

    def _read_stored(self) -> list[State]:
        with contextlib.suppress(ValueError):  # the file belongs to another user, so no results are stored
            return self._files.read()
        return []

    def _follow(self, check: RunningCheck) -> None:
        """Follow a check from its start to the end of its last process."""
        try:
            with temporary_folder("ddp-check-") as folder:
                check.error = self._run(check, folder)
        except OSError as error:
            check.error = f"The check could not be started or followed: {explain(error)}."
        except Exception as error:
            # Catch any error, so that the page does not show the check as running forever. The message of an
            # unexpected error may contain anything, so only the log contains it.
            log.error(
                "the check of this machine could not be followed: %s",
                explain(error),
                exc_info=error,
            )
            check.error = (
                f"An internal error of the page stopped the check ({type(error).__name__}). See the "
                "terminal in which the page runs."
            )
        finally:
            check.took_s = time.monotonic() - check.started
            check.has_ended.set()

    def _run(self, check: RunningCheck, folder: Path) -> str | None:
        """Run the program to its end; return the reason if it failed."""
        states_file, errors = folder / "states.jsonl", folder / "errors.log"
        process = check.process = self._start(check, states_file, errors)
        tree = ProcessTree(process.pid)
        last_state: State | None = None
        offset, deadline, is_signalled = 0, time.monotonic() + LIMIT_S, False
        try:
            while process.poll() is None and time.monotonic() < deadline:
                tree.update()
                last_state, offset = _last_state(states_file, offset, last_state)
                if last_state is not None and last_state["state"] == "running":
                    # the page shows the final state only after the last process has ended
                    check.state = last_state
                if check.is_cancel_requested and not is_signalled:
                    process.send_signal(signal.SIGTERM)
                    deadline, is_signalled = time.monotonic() + CANCEL_S, True
                check.has_ended.wait(POLL_S)
        finally:
            was_killed = process.poll() is None
            tree.kill()
            process.wait()
        check.state, _ = _last_state(states_file, offset, last_state)
        if check.state is not None and check.state["state"] != "running":
            return None
        if check.is_cancel_requested:
            return None
        if was_killed:
            return f"The check was not finished after {LIMIT_S / 60:.0f} minutes and was stopped."
        output_lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return (
            output_lines[-1] if output_lines else f"The check ended with exit code {process.returncode}."
        )[:MAX_ERROR_LENGTH]

    def _start(self, check: RunningCheck, states_file: Path, errors: Path) -> subprocess.Popen[bytes]:
        options = ["--runs-dir", str(self._runs_dir), "--check-id", check.check_id, "--json"]
        options += ["--except-gpus", ",".join(check.except_gpus)] if check.except_gpus else []
        with states_file.open("wb") as stdout, errors.open("wb") as stderr:
            return subprocess.Popen(
                lifeline.bound(sys.executable, *self._program, *options),
                cwd=REPOSITORY,
                env=environment.for_a_child(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )


def _last_state(path: Path, offset: int, previous: State | None) -> tuple[State | None, int]:
    """Return the last complete state after an offset of a file, and the offset for the next call."""
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    end = content.rfind(b"\n") + 1
    lines = content[:end].splitlines()
    return (json.loads(lines[-1]) if lines else previous), offset + end


def _without_log(finding: Mapping[str, Any]) -> State:
    """Return a finding without its log, which is in the file for a bug report."""
    return {name: value for name, value in finding.items() if name != "log"}
