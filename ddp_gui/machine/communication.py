"""Measurements of communication between ranks and between hosts."""

from __future__ import annotations

import itertools
import shlex
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddp_gui.devices.capacity import Machine
from trainers.engines.base import Engine, HostChecks, LinkReport
from trainers.engines.local.torchrun import (
    RendezvousFiles,
    literal_command,
    rank_exit_codes,
    torchrun_arguments,
    torchrun_options,
    torchrun_program,
)
from trainers.files import installation
from trainers.files.json_files import read_json_lines
from trainers.files.plain_files import REPOSITORY, temporary_folder
from trainers.machine import cuda_environment, environment, lifeline
from trainers.machine.os_errors import explain
from trainers.machine.processes import ProcessTree

MAX_ERROR_LENGTH = 300


def explain_failure(
    errors: Sequence[Mapping[str, Any]], output: str, exit_code: int, late_after_s: float | None
) -> str:
    """Explain why a check failed, with advice.

    Args:
        errors: the final errors of the ranks, first failure first.
        output: torchrun's output.
        exit_code: torchrun's exit code.
        late_after_s: the time limit after which the check was killed; None if it ended by itself.
    """
    if late_after_s is not None:
        return (
            f"The check was not finished after {late_after_s:.0f} s and was stopped. Either the ranks could "
            "not reach each other, or the machine is very busy. Try fewer ranks, or wait until no run is "
            "live."
        )
    killed_ranks = {rank: code for rank, code in rank_exit_codes(output).items() if _is_fatal_signal(code)}
    if killed_ranks:
        rank, code = next(iter(killed_ranks.items()))
        return f"Rank {rank} was killed by {_signal_text(code)} during the measurement. {_hint(code)}"
    if errors:
        first_error = errors[0]
        return f"Rank {first_error['rank']} failed: {_truncate(str(first_error['error']))}"
    if exit_code < 0:
        return f"torchrun, the parent of the ranks, was killed by {_signal_text(exit_code)}: try again."
    last_line = output.strip().splitlines()[-1:] or ["torchrun printed nothing"]
    return f"torchrun ended with exit code {exit_code}: {_truncate(last_line[0])}"


def _is_fatal_signal(exit_code: int) -> bool:
    """Return True if a signal is the cause. torchrun itself ends the remaining ranks by SIGTERM."""
    return exit_code < 0 and exit_code != -signal.SIGTERM


def _signal_text(exit_code: int) -> str:
    try:
        return f"a signal ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"signal {-exit_code}"


def _hint(exit_code: int) -> str:
    if exit_code == -signal.SIGKILL:
        return "The system often does this when memory runs out: try fewer ranks, or close other programs."
    return "Compiled code crashed; the driver and torch may not match."


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[:MAX_ERROR_LENGTH]} …"


class LinkChecks:
    """The latest measurement of an engine's links; thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._checks = engine if isinstance(engine, HostChecks) else None
        self._lock = threading.Lock()
        self._is_running = False
        self._started_unix_s: float | None = None
        self._links: list[LinkReport] = []
        self._error = ""

    def start(self) -> None:
        """Begin a check in a thread.

        Raises:
            ValueError: if a check is already running, or the engine has no pairs of hosts.
        """
        pairs = self._pairs()
        if not pairs:
            raise ValueError("this page has no hosts to measure between: start the page with --engine ssh")
        with self._lock:
            if self._is_running:
                raise ValueError("the links are already being measured: wait until the measurement is done")
            self._is_running, self._started_unix_s = True, time.time()
            self._links, self._error = [], ""
        # A daemon thread is enough, because measurements on the hosts end by themselves.
        threading.Thread(target=self._measure, args=(pairs,), name="links", daemon=True).start()

    def to_json(self) -> dict[str, Any]:
        """Return the latest check with its current results."""
        with self._lock:
            return {
                "is_running": self._is_running,
                "started_unix_s": self._started_unix_s,
                "num_links": len(self._pairs()),
                "links": [asdict(link) for link in self._links],
                "error": self._error,
            }

    def _pairs(self) -> Sequence[tuple[str, str]]:
        return () if self._checks is None else self._checks.links()

    def _measure(self, pairs: Sequence[tuple[str, str]]) -> None:
        error = ""
        try:
            for first, second in pairs:
                assert self._checks is not None
                link = self._checks.measure_link(first, second)
                with self._lock:
                    self._links.append(link)
        except (OSError, ValueError) as link_error:
            error = f"The links could not be measured: {explain(link_error)}."
        finally:
            with self._lock:
                self._is_running, self._error = False, error


TIMEOUT_S = 60.0
POLL_S = 0.05
MAX_STORED_CHECKS = 20
FEWEST_RANKS = 2
# A typical student model: 10 million parameters in float32.
EXAMPLE_PARAMETERS = 10_000_000
BYTES_PER_PARAMETER = 4

CheckState = Literal["running", "done", "failed", "stopped"]
Line = dict[str, Any]


@dataclass
class CommunicationCheck:
    """One check and its results so far."""

    check_id: str
    num_ranks: int
    backend: str
    arguments: list[str]
    busy_with: tuple[str, ...]
    started_by: str
    started_unix_s: float
    state: CheckState = "running"
    lines: list[Line] = field(default_factory=list)
    error: str | None = None
    stop_requested: threading.Event = field(default_factory=threading.Event)
    has_ended: threading.Event = field(default_factory=threading.Event)

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON values for the page and scripts."""
        example_bytes = EXAMPLE_PARAMETERS * BYTES_PER_PARAMETER
        return {
            "check_id": self.check_id,
            "state": self.state,
            "num_ranks": self.num_ranks,
            "backend": self.backend,
            "command": _command_text(self.arguments),
            "busy_with": list(self.busy_with),
            "started_unix_s": self.started_unix_s,
            "lines": self.lines,
            "error": self.error,
            "example": {
                "num_parameters": EXAMPLE_PARAMETERS,
                "size_bytes": example_bytes,
                "time_s": time_for(example_bytes, self.lines),
            },
        }


def time_for(size_bytes: int, lines: Sequence[Line]) -> float | None:
    """Return the time of an all-reduce of this size, interpolated between the two nearest measured sizes."""
    for smaller, larger in itertools.pairwise(lines):
        low, high = smaller["size_bytes"], larger["size_bytes"]
        if low <= size_bytes <= high:
            share = (size_bytes - low) / (high - low)
            return float(smaller["time_s"] + share * (larger["time_s"] - smaller["time_s"]))
    return None


def choose_backend(machine: Machine) -> str:
    """Return the backend: NCCL between several GPUs, otherwise gloo between CPU ranks."""
    return "nccl" if machine.num_gpus and machine.max_ranks("cuda") >= FEWEST_RANKS else "gloo"


def max_ranks(machine: Machine) -> int:
    """Return the maximum number of ranks of a check on this machine."""
    return machine.max_ranks("cuda") if choose_backend(machine) == "nccl" else machine.max_cpu_ranks


def default_ranks(machine: Machine) -> int:
    """Return the default number of ranks of a check: all GPUs, or two CPU ranks."""
    return max_ranks(machine) if choose_backend(machine) == "nccl" else FEWEST_RANKS


def check_arguments(num_ranks: int | str, machine: Machine) -> list[str]:
    """Return torchrun's arguments for a check."""
    has_lone_gpu = machine.num_gpus > 0 and choose_backend(machine) == "gloo"
    options = ("--device", "cpu") if has_lone_gpu else ()
    return torchrun_arguments(num_ranks, "trainers.check_communication", *options)


def shown_command(num_ranks: int | str, machine: Machine) -> str:
    """Return the literal command of a check, which works in any shell."""
    return _command_text(check_arguments(num_ranks, machine))


def _command_text(arguments: list[str]) -> str:
    return installation.in_project(shlex.join(literal_command(arguments, torchrun_program())))


class CommunicationChecks:
    """Starts, follows and ends checks; keeps the results of the latest checks."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._checks: dict[str, CommunicationCheck] = {}
        self._lock = threading.Lock()

    @property
    def newest_id(self) -> str | None:
        """The id of the latest check, or None."""
        return next(reversed(self._checks), None)

    def start(
        self, num_ranks: Any, machine: Machine, busy_with: Sequence[str] = (), started_by: str = ""
    ) -> CommunicationCheck:
        """Start a check with this number of ranks for a user; `busy_with` names the live runs.

        Raises:
            ValueError: if a check is already running, or the machine has fewer devices.
        """
        limit = max_ranks(machine)
        if isinstance(num_ranks, bool) or num_ranks not in range(FEWEST_RANKS, limit + 1):
            raise ValueError(
                f"num_ranks is {num_ranks!r}; allowed: a whole number from {FEWEST_RANKS} to {limit}"
            )
        check = CommunicationCheck(
            check_id=uuid.uuid4().hex[:12],
            num_ranks=int(num_ranks),
            backend=choose_backend(machine),
            arguments=check_arguments(int(num_ranks), machine),
            busy_with=tuple(busy_with),
            started_by=started_by,
            started_unix_s=time.time(),
        )
        with self._lock:
            if any(existing.state == "running" for existing in self._checks.values()):
                raise ValueError("a check is already running: wait until it ends, or stop it")
            self._checks[check.check_id] = check
            for oldest in list(self._checks)[:-MAX_STORED_CHECKS]:
                del self._checks[oldest]
        # The thread must outlive the check, because the kernel kills its processes when this thread ends.
        threading.Thread(target=self._follow, args=(check,), name="check", daemon=True).start()
        return check

    def find(self, check_id: Any) -> CommunicationCheck:
        """Return a check by its id.

        Raises:
            ValueError: if it does not exist.
        """
        check = self._checks.get(str(check_id))
        if check is None:
            raise ValueError(f"check_id is {check_id!r}; allowed: an id that check_communication returned")
        return check

    def stop(self, check_id: Any) -> CommunicationCheck:
        """End a check and wait until all its processes have ended. Does nothing if the check has ended.

        Raises:
            ValueError: if it does not exist.
        """
        check = self.find(check_id)
        check.stop_requested.set()
        check.has_ended.wait()
        return check

    def close(self) -> None:
        """End a running check. Called when the page ends."""
        for check in list(self._checks.values()):
            self.stop(check.check_id)

    def _follow(self, check: CommunicationCheck) -> None:
        """Follow a check from its start to the end of its last process."""
        rendezvous = RendezvousFiles()
        try:
            with temporary_folder("ddp-check-") as folder:
                check.state, check.error = self._run(check, folder, rendezvous.environment)
        except OSError as error:
            check.state, check.error = (
                "failed",
                f"The check could not be started: {explain(error)}.",
            )
        finally:
            rendezvous.close()
            check.has_ended.set()

    def _run(
        self, check: CommunicationCheck, folder: Path, variables: Mapping[str, str]
    ) -> tuple[CheckState, str | None]:
        lines_file = folder / "lines.jsonl"
        process = _start(check, folder, lines_file, variables)
        tree = ProcessTree(process.pid)
        deadline = time.monotonic() + self._timeout_s
        is_late = False
        while process.poll() is None and not is_late and not check.stop_requested.is_set():
            tree.update()
            check.lines = [line for line in read_json_lines(lines_file) if "error" not in line]
            check.stop_requested.wait(POLL_S)
            is_late = time.monotonic() > deadline
        was_killed = process.poll() is None
        tree.kill()
        process.wait()
        lines = read_json_lines(lines_file)
        check.lines = [line for line in lines if "error" not in line]
        if was_killed and check.stop_requested.is_set():
            return "stopped", None
        if process.returncode == 0 and check.lines:
            return "done", None
        output = (folder / "output.log").read_text(encoding="utf-8", errors="replace")
        errors = [line for line in lines if "error" in line]
        late_after_s = self._timeout_s if was_killed else None
        return "failed", explain_failure(errors, output, process.returncode, late_after_s)


def _start(
    check: CommunicationCheck, folder: Path, lines_file: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    gpus = cuda_environment.none_visible() if check.backend == "gloo" else {}
    with lines_file.open("ab") as stdout, (folder / "output.log").open("ab") as stderr:
        return subprocess.Popen(
            lifeline.bound(*torchrun_program(), *check.arguments),
            cwd=REPOSITORY,
            env=environment.for_a_child({**torchrun_options(folder / "torchrun"), **variables, **gpus}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
