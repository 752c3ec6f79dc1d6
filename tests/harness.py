"""Start real runs for tests, wait for their events, and clean up all their processes."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests import torch_template
from trainers.contract import config, events, rundir
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory, Status
from trainers.engines import liveness
from trainers.engines.local import fork_server, torchrun
from trainers.machine import processes

REPOSITORY = Path(__file__).resolve().parent.parent
POLL_S = 0.02
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
# Upper bounds that only failing tests reach. A shared machine can be many times slower than an idle one.
START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 180.0
ANSWER_TIMEOUT_S = 180.0
A_LITTLE_S = 0.1
# For runs whose losses are compared bit by bit: the number of threads, which changes the order of summation,
# would otherwise follow from the cores that are free at the start.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Factor for all timeouts, for machines that are busy with other work.
TIMEOUT_SCALE = float(os.environ.get("TESTS_TIMEOUT_SCALE", "1"))

# Takes seconds on two cores, and uses the CPU even on a machine with a GPU.
SMALL = {
    "dataset": "digits",
    "model": "mlp",
    "nproc_per_node": 2,
    "batch_size": 32,
    "device": "cpu",
    "seed": 0,
}


def wait_until(what: str, is_true: Callable[[], Any], timeout_s: float) -> Any:
    """Poll until `is_true` returns a truthy value and return it. The error on timeout contains `what`."""
    timeout_s *= TIMEOUT_SCALE
    deadline = time.monotonic() + timeout_s
    while True:
        value = is_true()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain for: {what}")
        time.sleep(POLL_S)


def run_to_end(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program in the repository, with this environment activated; return its exit code and its output.

    Raises:
        TimeoutExpired: on timeout, after the program and all its descendants were killed.
    """
    programs = Path(sys.executable).parent
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s * TIMEOUT_SCALE)
        except subprocess.TimeoutExpired:
            top = psutil.Process(process.pid)
            for each in [*top.children(recursive=True), top]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            raise
    return process.returncode, said


def create_run(runs_dir: Path, **values: Any) -> RunDirectory:
    """Create a run directory with the small configuration, changed by `values`."""
    return rundir.create(runs_dir, config.parse(SMALL | values))


def processes_of(run: RunDirectory) -> list[psutil.Process]:
    """Return the live processes that belong to the run."""
    found = []
    for process in psutil.process_iter():
        try:
            if belongs_to(process, run) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def belongs_to(process: psutil.Process, run: RunDirectory) -> bool:
    """Return True if the process has the run directory on its command line or writes to the run's logs."""
    output = processes.output_of(process.pid)
    is_output = output is not None and (output.parent == run.logs or output == supervisor_output(run))
    return is_output or str(run.path) in process.cmdline()


def supervisor_output(run: RunDirectory) -> Path:
    """Return the file that receives the supervisor's output."""
    return run.path.parent / f"{run.run_id}.supervisor.log"


def _started_unix_s(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.NoSuchProcess:
        return math.inf  # the process has ended


def let_go_on_until(process: psutil.Process, what: str, is_true: Callable[[], Any], timeout_s: float) -> Any:
    """Run a process in short slices until `is_true` returns a truthy value; leave the process suspended.

    The process cannot finish its work before the caller inspects it, however slow the caller is.
    """

    def is_true_after_a_little() -> Any:
        process.resume()
        time.sleep(A_LITTLE_S)
        process.suspend()
        return is_true()

    process.suspend()
    return wait_until(what, is_true_after_a_little, timeout_s)


def ranks_below(torchrun: psutil.Process) -> list[psutil.Process]:
    """Return torchrun's child processes in rank order, which is the order of their creation."""
    return sorted(torchrun.children(), key=lambda process: (process.create_time(), process.pid))


def ranks_of(run: RunDirectory) -> dict[int, int]:
    """Return the PID of each rank of a run: the oldest process whose output is the rank's log."""
    logs = {run.rank_log(rank): rank for rank in range(run.read_config().nproc_per_node)}
    youngest_first = sorted(processes_of(run), key=_started_unix_s, reverse=True)
    outputs = {processes.output_of(process.pid): process.pid for process in youngest_first}
    return {logs[output]: pid for output, pid in outputs.items() if output in logs}


def torchrun_by_hand(run: RunDirectory, *extra: str) -> list[str]:
    """Return the command that the page shows, with this interpreter's torchrun."""
    return torchrun.literal_command(
        [*torchrun.worker_arguments(run.read_config(), run.path), *extra], TORCHRUN
    )


def torchrun_of(num_ranks: int, module: str, *arguments: str) -> list[str]:
    """Return the command that starts a module on ranks of this machine, as the page does."""
    return torchrun_that_forks(torchrun.torchrun_arguments(num_ranks, module, *arguments))


def torchrun_that_forks(arguments: list[str]) -> list[str]:
    """Return the command of a torchrun that imports torch once for all its ranks, if forking is supported."""
    if not torchrun.can_fork():
        return torchrun.literal_command(arguments, TORCHRUN)
    program = (sys.executable, "-m", fork_server.__name__, str(os.getpid()))
    return torchrun.literal_command(arguments, program)


class LiveRun:
    """A run under a supervisor, observed from outside through its files and processes.

    Args:
        repository: Folder in which the supervisor is executed as for a user. If None, the supervisor is
            forked, see `torch_template`.
        environment: Additional variables. If there are any, the supervisor is always executed.
    """

    def __init__(
        self,
        run: RunDirectory,
        resume_step: int | None,
        repository: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.run = run
        self.environment = dict(environment or {})
        # Skip the events of earlier starts, then read incrementally: waiting polls fifty times a second.
        self._events: list[Event] = []
        self._events_offset = 0
        self._read_events()
        self._events.clear()
        self._output = supervisor_output(run)
        command = [torch_template.SUPERVISOR, str(run.path)]
        if resume_step is not None:
            command += ["--resume", str(resume_step)]
        variables = {**os.environ, **self.environment}
        with self._output.open("ab") as output:
            if repository is None and not self.environment:
                self.supervisor = torch_template.start(command, output, variables)
            else:
                self.supervisor = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=repository or REPOSITORY,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def events(self, kind: str | None = None) -> list[Event]:
        """Return the events since this start of the run, of one kind or all."""
        self._read_events()
        return [event for event in self._events if kind is None or event["kind"] == kind]

    def _read_events(self) -> None:
        before = -1
        while self._events_offset != before:
            before = self._events_offset
            batch, self._events_offset = events.read(self.run.events, before)
            self._events += batch

    def states(self) -> list[str]:
        """Return the states of the run since this start."""
        return [event["state"] for event in self.events("state")]

    def losses(self) -> dict[int, float]:
        """Return the loss of each reported step."""
        return {event["step"]: event["loss"] for event in self.events("step")}

    def wait_for(
        self,
        kind: str,
        where: Callable[[Event], bool] = lambda event: True,
        *,
        timeout_s: float = START_TIMEOUT_S,
    ) -> Event:
        """Return the first event of this kind that matches. Fail as soon as the run ends without it."""

        def look() -> Event | None:
            ended = self.supervisor.poll() is not None
            found = next((event for event in self.events(kind) if where(event)), None)
            assert found is not None or not ended, f"the run ended without such a {kind}: {self.story()}"
            return found

        event: Event = wait_until(f"an event of kind {kind}", look, timeout_s)
        return event

    def wait_for_step(self, step: int) -> None:
        """Wait until this step is reported."""
        self.wait_for("step", lambda event: event["step"] >= step)

    def ask(self, name: str, **arguments: Any) -> Event:
        """Send a command and return the `command` event that answers it."""
        asked = self.run.append_command(name, **arguments)
        return self.wait_for("command", lambda event: event["id"] == asked, timeout_s=ANSWER_TIMEOUT_S)

    def pause_at_start(self) -> Event:
        """Pause the run as soon as it trains and return the answer; `ask("resume")` continues it.

        Without the pause, a short run could end on a fast machine before the test inspects it. The computed
        numbers do not change.
        """
        # A command written before the supervisor opens the file does not apply to this start.
        wait_until("the ranks being started", self.run.rank_log(0).exists, START_TIMEOUT_S)
        asked = self.run.append_command("pause")
        return self.wait_for("command", lambda event: event["id"] == asked)

    def wait_for_end(self, timeout_s: float = END_TIMEOUT_S) -> Status:
        """Wait until the supervisor ends and return the final status."""
        wait_until("the end of the run", lambda: self.supervisor.poll() is not None, timeout_s)
        return liveness.read_status(self.run)

    def finish(self) -> LiveRun:
        """Wait until the run has finished; return it. Fail if it ends otherwise."""
        assert self.wait_for_end().state == "finished", self.story()
        return self

    def is_over_within(self, timeout_s: float) -> Status:
        """Wait until the supervisor and all processes of the run have ended, with one timeout for both."""
        began = time.monotonic()
        status = self.wait_for_end(timeout_s)
        self.wait_for_no_process(timeout_s - (time.monotonic() - began))
        return status

    def wait_for_no_process(self, timeout_s: float) -> None:
        """Fail if a process of the run still exists at the deadline."""
        wait_until("no process of the run being left", lambda: not processes_of(self.run), timeout_s)

    def reap(self) -> None:
        """Reap a killed supervisor in a thread, so that it does not remain as a zombie."""
        threading.Thread(target=self.supervisor.wait, daemon=True).start()

    def torchrun(self) -> psutil.Process:
        """Return the process of torchrun."""
        ranks = self.ranks()
        return next(
            p for p in processes_of(self.run) if p.pid != self.supervisor.pid and p.pid not in ranks.values()
        )

    def rank(self, rank: int) -> psutil.Process:
        """Return the process of a rank."""
        return psutil.Process(self.ranks()[rank])

    def ranks(self) -> dict[int, int]:
        """Return the PID of each rank."""
        return ranks_of(self.run)

    def story(self) -> str:
        """Return the status and the tail of each log, for assertion messages."""
        paths = [self._output, *sorted(self.run.logs.glob("*.log"))]
        ends = "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in paths)
        return f"{liveness.read_status(self.run)}\n{self.states()}\n{ends}"

    def kill(self) -> None:
        """Kill every process of the run, in any state."""
        self.supervisor.kill()
        self.supervisor.wait(timeout=ANSWER_TIMEOUT_S)
        wait_until("the end of every process", lambda: not self._kill_those_there(), ANSWER_TIMEOUT_S)

    def _kill_those_there(self) -> list[psutil.Process]:
        """Kill the current processes. A process may start another one during the scan, so callers repeat
        this.
        """
        there = processes_of(self.run)
        for process in there:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return there


class Launcher:
    """Start runs below one directory. `close` kills all their processes.

    Args:
        repository: Folder in which supervisors are executed. If None, they are forked, see `torch_template`.
    """

    def __init__(self, runs_dir: Path, repository: Path | None = None) -> None:
        self.runs_dir = runs_dir
        self.repository = repository
        self._live: list[LiveRun] = []

    def start(self, **values: Any) -> LiveRun:
        """Create a small run and start it under a supervisor."""
        return self.start_run(create_run(self.runs_dir, **values))

    def start_run(
        self,
        run: RunDirectory,
        resume_step: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> LiveRun:
        """Start an existing run, from the beginning or from a checkpoint."""
        live = LiveRun(run, resume_step, self.repository, environment)
        self._live.append(live)
        return live

    def close(self) -> None:
        """Kill the remaining processes of every run and check that they have ended."""
        for live in self._live:
            live.kill()


def all_events(run: RunDirectory) -> list[Event]:
    """Return all complete events of a run."""
    return list(events.read_all(run.events))
