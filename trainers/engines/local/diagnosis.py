"""Finds the cause of a run's end, and records it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainers.contract import events, manifests, tickets
from trainers.contract.events import EventFile, State
from trainers.contract.rundir import RunDirectory, remove_advice
from trainers.contract.status import NOTHING_SAVED_HINT, RANK_KILL_REQUESTED, Status
from trainers.engines.local.torchrun import first_failed_rank, output_paths, rank_exit_codes
from trainers.machine import cuda_environment
from trainers.machine.environment import now_unix_s
from trainers.machine.os_errors import explain

# Errors of a healthy rank after another rank has ended. They are consequences, never the cause.
PEER_ERRORS = re.compile(
    r"connection closed by (remote )?peer|connection reset by peer|broken pipe"
    r"|remote process (has )?exited|ncclRemoteError|connection refused|socket closed"
    r"|NCCL (communicator|error).*(abort|remote)|recvValue failed",
    re.IGNORECASE,
)
TIMEOUT_ERRORS = re.compile(
    r"timed out waiting \d+ ?ms|wait timeout after|collective operation timeout", re.IGNORECASE
)
# Errors of a rank's own GPU: caused by the rank's work, or by the GPU itself.
GPU_ERRORS = re.compile(
    r"(CUDA|CUDA driver|HIP|cuBLAS|cuDNN) error: |CUDA out of memory|device-side assert|illegal memory access"
    r"|uncorrectable ECC|(NCCL error: )?unhandled cuda error|ncclUnhandledCudaError"
    r"|Cuda failure|\bXid\b|CU(BLAS|DNN|SOLVER|SPARSE|RAND|FFT)_|Duplicate GPU detected",
    re.IGNORECASE,
)
# Exhausted memory. CUDA's libraries have their own status codes: CUBLAS_STATUS_ALLOC_FAILED,
# CUFFT_ALLOC_FAILED, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED.
OUT_OF_MEMORY = re.compile(
    r"out of memory|memoryerror|(can't|cannot) allocate memory|\bCU[A-Z]+_(\w+_)?ALLOC(ATION)?_FAILED\b",
    re.IGNORECASE,
)
# Full shared memory, in NCCL's transport within a machine or in torch's memory shared between processes.
SHARED_MEMORY_FULL = re.compile(
    r"shared memory segment /dev/shm.{0,200}(No space left|Cannot allocate)"
    r"|file </torch_.{0,200}No space left|out of shared memory",
    re.IGNORECASE,
)

# First line of each start of the run, in a log that several starts share.
_START = re.compile(r"rank \d+: process \d+, rank \d+ of \d+, on ")
_MAX_ERROR_CHARACTERS = 300

_BLOCKING_HINT = "To find the line, start the command by hand with CUDA_LAUNCH_BLOCKING=1."
_TORCH_INDEX = re.compile(r"\b(GPU |cuda:)(\d{1,3})\b")
_NOT_DETERMINISTIC = re.compile(
    r"does not have a deterministic implementation|this operation is not deterministic because"
)
# Only a user's own script requests a GPU if torch can use none.
_NO_GPU = re.compile(
    r"no GPUs found|No CUDA GPUs are available|Torch not compiled with CUDA enabled|Found no NVIDIA driver"
    r"|doesn't have NCCL built in"
)
_NCCL_REASON = re.compile(r"\bLast error:\s*([^\n]+)")
_GPU_HINTS = (
    (
        re.compile(r"Duplicate GPU detected", re.IGNORECASE),
        "Two ranks use the same GPU (or MIG instances of one GPU), which NCCL does not allow. ",
        "Choose at most one rank per GPU.",
    ),
    (
        re.compile(r"device-side assert", re.IGNORECASE),
        "The usual cause is an index out of range, such as a label or token that the model does not have. ",
        _BLOCKING_HINT,
    ),
    (
        re.compile(r"ECC|\bXid\b|fallen off the bus|GPU is lost", re.IGNORECASE),
        "The GPU itself failed and may need a reset. The system log names the fault (search for Xid). ",
        "",
    ),
    (
        re.compile(r"illegal memory access|misaligned address|unspecified launch failure", re.IGNORECASE),
        "A kernel accessed memory that is not its own. ",
        _BLOCKING_HINT,
    ),
)


def fatal_error(log_end: str) -> str:
    """Return the fatal error of a rank without an error file: the first error in the log since its last
    start.

    Later errors follow from the first: a rank whose peers have ended may fail on its GPU, too. Empty if no
    known error is found.
    """
    starts = list(_START.finditer(log_end))
    text = log_end[starts[-1].end() :] if starts else log_end
    matches = [
        match for pattern in (GPU_ERRORS, TIMEOUT_ERRORS, PEER_ERRORS) if (match := pattern.search(text))
    ]
    if not matches:
        return ""
    first_match = min(matches, key=lambda match: match.start())
    return text[first_match.start() :].splitlines()[0].strip()[:_MAX_ERROR_CHARACTERS]


def gpu_hint(message: str) -> str | None:
    """Return a remedy for a GPU error; None for other errors and for exhausted memory."""
    if GPU_ERRORS.search(message) is None or OUT_OF_MEMORY.search(message):
        return None
    for pattern, cause, remedy in _GPU_HINTS:
        if pattern.search(message):
            return f"{cause}{remedy}".strip()
    return f"An error of the GPU or its driver. {_BLOCKING_HINT}"


def kind_and_hint(message: str) -> tuple[str, str] | None:
    """Return code and remedy of an error that a rank raised; None if only its traceback explains it."""
    if SHARED_MEMORY_FULL.search(message):
        return "shared_memory_full", (
            "Shared memory (/dev/shm), through which ranks and loader workers exchange data, is full. "
            "Increase it (in a container: docker run --shm-size=8g), or use fewer loader workers."
        )
    if OUT_OF_MEMORY.search(message):
        return "out_of_memory", "Choose a smaller batch per GPU or a smaller model, then start again."
    if _NOT_DETERMINISTIC.search(message):
        return "rank_raised", (
            "This operation has no deterministic algorithm on this device: turn Deterministic off, or "
            "choose another model."
        )
    if _NO_GPU.search(message):
        return (
            "rank_raised",
            "torch can use no GPU on this machine. To use CPU ranks, turn on “Run on CPU ranks”.",
        )
    hint = gpu_hint(message)
    return None if hint is None else ("gpu_error", hint)


def shorten_log(message: str) -> str:
    """Return an error of CUDA or NCCL without the library's advice: its first line, and NCCL's reason."""
    first_line = message.strip().splitlines()[0]
    reason = _NCCL_REASON.search(message)
    return (
        first_line
        if reason is None or reason[1] in first_line
        else f"{first_line.rstrip('.,:')}: {reason[1].strip()}"
    )


def use_machine_indices(message: str, indices: Sequence[int | None]) -> str:
    """Replace torch's GPU numbers in a message by the machine's indices.

    torch numbers the GPUs within CUDA_VISIBLE_DEVICES ("GPU 0 has a total capacity of", "cuda:0").

    Args:
        indices: Machine index of each visible GPU, in torch's order; None if unknown.
    """

    def machine_gpu(match: re.Match[str]) -> str:
        number = int(match[2])
        index = indices[number] if number < len(indices) else None
        return match[0] if index is None else f"GPU {index}"

    return _TORCH_INDEX.sub(machine_gpu, message)


# Exceptions that may be raised when another rank ends, with any message.
_CONNECTION_ERROR = re.compile(r"\w*(Runtime|Dist\w*|Connection\w*|Timeout|OS|BrokenPipe|EOF)Error\b")
# torchrun's log line for a rank that it killed because SIGTERM did not end it.
_KILLED_BY_TORCHRUN = "forcefully exiting via"
# Errors that only follow from a cause on another machine, or from a network failure.
CONSEQUENCE_CODES = ("rank_left", "connection_lost", "collective_timeout")
# Errors that are possible when the system ends the entire run.
SYSTEM_END_CODES = (*CONSEQUENCE_CODES, "node_ended", "rank_terminated", "torchrun_terminated")
STOP_HINT = "To end a run, use Stop, which saves a checkpoint first."
TORCHRUN_SIGTERM = re.compile(r"got signal: (15|2)\b")
_BARE_KEY_ERROR = re.compile(r"KeyError: (.{1,200})")
_TAIL_BYTES = 256 * 1024
_KILLED_CODES = frozenset({"rank_killed", "torchrun_killed"})
# torch's message for a loader worker that has died.
_LOST_WORKER = re.compile(r"DataLoader worker \(pid.{0,80}(killed by signal|exited unexpectedly)", re.DOTALL)
LESS_MEMORY_HINT = "Choose a smaller batch, a smaller model, fewer ranks or fewer loader workers."


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The fields of an `error` event."""

    code: str
    message: str
    hint: str
    rank: int | None = None
    traceback: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the event's fields."""
        return vars(self).copy()


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """The evidence of one rank. `exit_code` is negative for a signal, None if torchrun reported none."""

    rank: int
    exit_code: int | None
    message: str
    traceback: str | None
    time_unix_s: float

    @property
    def is_consequence(self) -> bool:
        return bool(PEER_ERRORS.search(self.message)) or self.exit_code == -signal.SIGTERM

    @property
    def was_killed(self) -> bool:
        return not self.message and self.exit_code is not None and self.exit_code < 0


def explain_end(
    run: RunDirectory, exit_code: int, kill_reason_of: Callable[[int], str] = lambda _rank: ""
) -> Cause:
    """Return the root cause of a failed run. All its processes on this machine must have ended.

    Args:
        exit_code: Of this machine's torchrun.
        kill_reason_of: Returns why the launcher of a rank's machine has killed the rank; empty if it has not.
    """
    num_ranks, num_machines = num_ranks_and_machines(run)
    failures = [
        failure
        for machine in range(num_machines)
        for failure in _failures(run, machine, first_rank=machine * num_ranks // num_machines)
    ]
    log_end = _tail(output_paths(run)[0])
    if not failures:
        return _torchrun_ended(exit_code, log_end)
    causes = [failure for failure in failures if not failure.is_consequence]
    kill_reason = next((reason for rank in range(num_ranks) if (reason := kill_reason_of(rank))), "")
    if kill_reason and all(failure.was_killed for failure in causes):
        return Cause(
            code="node_ended",
            message=f"A launcher ended the ranks of its machine: {kill_reason}",
            hint="Check that the machines, their network and the shared folder are up.",
        )
    if not causes:
        return _peer_lost(num_ranks, failures, first_failed_rank(log_end))
    first = _first_failure(causes, log_end)
    if first.was_killed:
        return _rank_killed(first, requested_ranks=_kill_requests(run))
    if TIMEOUT_ERRORS.search(first.message):
        return _collective_timeout(run, first, failures)
    return _rank_raised(first, _gpu_indices(run, first.rank))


def add_lack_of_memory(cause: Cause) -> Cause:
    """Add to a cause that the kernel has just killed a process of this cgroup for lack of memory."""
    is_killed = cause.code in _KILLED_CODES and cause.message != _kill_request_message(cause.rank)
    if not is_killed and not _LOST_WORKER.search(cause.message):
        return cause
    return replace(
        cause,
        message=f"{cause.message} At that time, the kernel killed a process because memory ran out.",
        hint=LESS_MEMORY_HINT,
    )


def _kill_request_message(rank: int | None) -> str:
    return f"Rank {rank} was killed (SIGKILL), as requested on its page."


def _first_failure(causes: list[_Failure], torchrun_log: str) -> _Failure:
    """Return the failure that caused all others. A killed rank causes the errors of its peers.

    Exception: a rank that aborted, or that torchrun killed, after another rank had raised an error.
    """
    raised = [failure for failure in causes if not failure.was_killed]
    first_rank = first_failed_rank(torchrun_log)
    for failure in raised:
        if failure.rank == first_rank and not _CONNECTION_ERROR.match(failure.message):
            return failure
    late_exit_codes = {-signal.SIGABRT} | (
        {-signal.SIGKILL} if _KILLED_BY_TORCHRUN in torchrun_log else set()
    )
    candidates = [
        failure
        for failure in causes
        if not (raised and failure.was_killed and failure.exit_code in late_exit_codes)
    ]
    return min(candidates, key=lambda failure: (not failure.was_killed, failure.time_unix_s))


def signal_name(exit_code: int) -> str:
    """Return the name of the signal in a negative exit code."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _failures(run: RunDirectory, machine: int, first_rank: int) -> list[_Failure]:
    """Return the failures of one machine's ranks. Its folder counts local ranks from 0.

    Args:
        first_rank: Global rank of the machine's first rank.
    """
    log, folder = output_paths(run, machine)
    exit_codes = rank_exit_codes(_tail(log), first_rank)
    by_rank = {}
    for path in folder.glob("*/attempt_*/*/error.json"):
        failure = _read_error_file(path, first_rank + int(path.parent.name), exit_codes)
        by_rank[failure.rank] = failure
    for rank, exit_code in exit_codes.items():
        if rank not in by_rank:
            # A rank aborted by NCCL's watchdog has no error file; its error is in the log.
            message = fatal_error(_tail(run.rank_log(rank))) if exit_code == -signal.SIGABRT else ""
            by_rank[rank] = _Failure(
                rank=rank, exit_code=exit_code, message=message, traceback=None, time_unix_s=0.0
            )
    return list(by_rank.values())


def _read_error_file(path: Path, rank: int, exit_codes: Mapping[int, int]) -> _Failure:
    try:
        message = json.loads(path.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, LookupError, TypeError):
        message = "its error file cannot be read"
    extra_info = message.get("extraInfo", {}) if isinstance(message, dict) else {}
    text = str(message.get("message", "")) if isinstance(message, dict) else str(message)
    return _Failure(
        rank=rank,
        exit_code=exit_codes.get(rank),
        message=_format_error(text),
        traceback=None if (stack := extra_info.get("py_callstack")) is None else remove_advice(str(stack)),
        time_unix_s=float(extra_info.get("timestamp", path.stat().st_mtime)),
    )


def _format_error(text: str) -> str:
    """Return a rank's error as a message; torch reports a KeyError as the bare key."""
    if match := _BARE_KEY_ERROR.fullmatch(text.strip()):
        return f"key {match[1]} does not exist (KeyError)"
    return remove_advice(text)


def _kill_requests(run: RunDirectory) -> set[int]:
    """Return the ranks that a user has asked to kill since the last start of the run."""
    ranks: set[int] = set()
    for event in events.read_all(run.events):
        if event["kind"] == "state" and event["state"] == "starting":
            ranks.clear()
        elif event["kind"] == "warning" and event["code"] == RANK_KILL_REQUESTED:
            ranks.add(event["rank"])
    return ranks


def _rank_killed(failure: _Failure, requested_ranks: set[int]) -> Cause:
    assert failure.exit_code is not None
    name = signal_name(failure.exit_code)
    if name == "SIGKILL" and failure.rank in requested_ranks:
        return Cause(
            code="rank_killed",
            message=_kill_request_message(failure.rank),
            hint="torchrun ended the other ranks, too, because a collective needs all ranks.",
            rank=failure.rank,
        )
    if name == "SIGKILL":
        hint = "The sender of the signal is unknown; the system log (dmesg) may show it."
        return Cause(
            code="rank_killed",
            message=f"Rank {failure.rank} was killed (SIGKILL), by the system or by a user.",
            hint=hint,
            rank=failure.rank,
        )
    return Cause(
        code="rank_crashed",
        message=f"Rank {failure.rank} crashed ({name}).",
        hint=f"Compiled code crashed; the end of logs/rank_{failure.rank}.log may show more.",
        rank=failure.rank,
    )


def _rank_raised(failure: _Failure, gpu_indices: Sequence[int | None]) -> Cause:
    message = (
        failure.message or f"the process ended with exit code {failure.exit_code} without an error message"
    )
    code_and_hint = kind_and_hint(message)
    code, hint = code_and_hint or (
        "rank_raised",
        f"The traceback and logs/rank_{failure.rank}.log show the line.",
    )
    if code in ("gpu_error", "shared_memory_full"):
        message = shorten_log(message)
    message = use_machine_indices(message, gpu_indices)
    return Cause(
        code=code,
        message=f"Rank {failure.rank} failed: {message}" + ("" if message.endswith((".", "!", "?")) else "."),
        hint=hint,
        rank=failure.rank,
        traceback=failure.traceback,
    )


def _collective_timeout(run: RunDirectory, failure: _Failure, failures: list[_Failure]) -> Cause:
    """Explain a collective's timeout by the rank that did not wait, or has the lowest step."""
    waiting_ranks = {item.rank for item in failures if TIMEOUT_ERRORS.search(item.message)}
    absent_ranks = [rank for rank in range(num_ranks_and_machines(run)[0]) if rank not in waiting_ranks]
    late_rank = absent_ranks[0] if len(absent_ranks) == 1 else _find_rank_behind(run)
    rank_text = "" if late_rank is None else f"; rank {late_rank} never arrived"
    log_text = "the logs of the ranks" if late_rank is None else f"logs/rank_{late_rank}.log"
    return Cause(
        code="collective_timeout",
        message=f"The ranks waited too long for each other{rank_text}.",
        hint=f"See the end of {log_text}.",
        rank=late_rank,
        traceback=failure.traceback,
    )


def _gpu_indices(run: RunDirectory, rank: int) -> list[int | None]:
    """Return the machine index of each GPU that a rank sees, in torch's order; empty if unknown.

    All ranks of a machine see the same GPUs, and local rank r uses GPU r in torch's order. A MIG instance
    has no index.
    """
    try:
        ticket, config = tickets.read_granted(run), run.read_config()
    except (OSError, ValueError):
        return []
    if ticket is not None and ticket.grant is not None and ticket.grant.gpus:
        is_part = any(gpu.uuid.startswith(cuda_environment.MIG) for gpu in ticket.grant.gpus)
        return [] if is_part else [gpu.index for gpu in ticket.grant.gpus]
    devices: list[dict[str, Any]] = []
    for event in events.read_all(run.events):
        if event["kind"] == "state" and event["state"] == "starting":
            devices = []
        elif event["kind"] == "devices":
            devices = event["devices"]
    index_by_rank = {entry["rank"]: entry["index"] for entry in devices if entry["kind"] == "cuda"}
    first_rank = rank // config.nproc_per_node * config.nproc_per_node
    return [index_by_rank.get(first_rank + local) for local in range(config.nproc_per_node)]


def num_ranks_and_machines(run: RunDirectory) -> tuple[int, int]:
    """Return the numbers of ranks and machines; (0, 1) if the configuration is damaged."""
    try:
        config = run.read_config()
    except (OSError, ValueError):
        return 0, 1
    return config.world_size, config.num_nodes


def _find_rank_behind(run: RunDirectory) -> int | None:
    newest: list[dict[str, Any]] = []
    for event in events.read_all(run.events):
        if event["kind"] == "ranks":
            newest = event["ranks"]
    steps = {entry["rank"]: entry["step"] for entry in newest}
    if len(set(steps.values())) < 2:
        return None
    return int(min(steps, key=lambda rank: steps[rank]))


def _peer_lost(num_ranks: int, failures: list[_Failure], first_rank: int | None) -> Cause:
    """Explain an end in which every rank with an error only lost a peer: the rank without an error is the
    cause.

    Args:
        first_rank: The rank whose end torchrun detected first. torchrun then sends SIGTERM to the others, so
            their SIGTERM proves nothing.
    """
    failed_ranks = {item.rank for item in failures}
    silent_ranks = [rank for rank in range(num_ranks) if rank not in failed_ranks]
    terminated_ranks = [
        item.rank for item in failures if item.exit_code == -signal.SIGTERM and not item.message
    ]
    if first_rank is not None and first_rank in terminated_ranks:
        return _rank_terminated(first_rank)
    if len(terminated_ranks) == 1 and not silent_ranks:
        return _rank_terminated(terminated_ranks[0])
    if len(silent_ranks) == 1:
        return Cause(
            code="rank_left",
            message=f"Rank {silent_ranks[0]} ended before training was done, and left no error.",
            hint=f"The cause is unknown; logs/rank_{silent_ranks[0]}.log shows its last output.",
            rank=silent_ranks[0],
        )
    first_failure = min(failures, key=lambda failure: failure.time_unix_s)
    return Cause(
        code="connection_lost",
        message=f"Rank {first_failure.rank} lost the connection to the other ranks.",
        hint="The log of each rank shows its last output.",
        rank=first_failure.rank,
        traceback=first_failure.traceback,
    )


def _rank_terminated(rank: int) -> Cause:
    return Cause(
        code="rank_terminated",
        message=f"Rank {rank} was terminated (SIGTERM) by the system or by a user.",
        hint=STOP_HINT,
        rank=rank,
    )


def _torchrun_ended(exit_code: int, log_end: str) -> Cause:
    if exit_code == -signal.SIGTERM or TORCHRUN_SIGTERM.search(log_end):
        return Cause(
            code="torchrun_terminated",
            message=(
                "torchrun, the parent of all ranks, was terminated (SIGTERM) by the system or by a user."
            ),
            hint=STOP_HINT,
        )
    if exit_code < 0:
        return Cause(
            code="torchrun_killed",
            message=f"torchrun, the parent of all ranks, was killed ({signal_name(exit_code)}).",
            hint="The sender of the signal is unknown; the system log (dmesg) may show it.",
        )
    if exit_code == 0:
        return Cause(
            code="ended_early",
            message="The ranks ended before training was done, without an error.",
            hint="torchrun returned exit code 0; the logs of the ranks show their last output.",
        )
    last_lines = log_end.strip().splitlines()[-1:] or ["it wrote nothing"]
    return Cause(
        code="torchrun_failed",
        message=f"torchrun ended with exit code {exit_code}: {remove_advice(last_lines[0])[:300]}",
        hint="See logs/torchrun.log for the complete output.",
    )


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


# Kind and fields of an event.
NewEvent = tuple[str, Mapping[str, Any]]

# Final states that are not failures.
SUCCESS_STATES = ("stopped", "finished")
CONTINUES_HINT = "It continues when there is space."
FINAL_WRITE_LIMIT_S = 4.0
RETRY_S = 0.5


def append_final_events(run: RunDirectory, final_events: Sequence[NewEvent]) -> None:
    """Append events; retry for some seconds while the disk is full."""
    remaining = list(final_events)
    retry_write("the final events", lambda: append_within_limits(run, remaining))


def append_within_limits(run: RunDirectory, remaining: list[NewEvent]) -> None:
    """Append events, and remove those from the list that were written.

    Raises:
        OSError: If the disk is full before all are written.
    """
    now = now_unix_s()
    with contextlib.closing(EventFile(run.events)) as file:
        while remaining:
            del remaining[: file.append((now, kind, fields) for kind, fields in remaining)]


def retry_write(label: str, write: Callable[[], Any], *, within_s: float = FINAL_WRITE_LIMIT_S) -> bool:
    """Call `write`, and retry while the disk refuses; return True if it succeeded."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            write()
            return True
        except (FileNotFoundError, NotADirectoryError) as error:
            print(
                f"{label} could not be written, because the run directory is gone: {explain(error)}",
                flush=True,
            )
            return False
        except OSError as error:
            print(f"{label} could not be written, trying again: {explain(error)}", flush=True)
            if time.monotonic() > deadline:
                return False
            time.sleep(RETRY_S)


def forced_stop(*, by_system: bool) -> Cause:
    """Return the cause of a run that was ended by force."""
    reason = (
        "A signal (SIGTERM) asked the run to end"
        if by_system
        else "The run did not stop in time and was killed"
    )
    hint = "Steps after the latest checkpoint were not saved."
    return Cause(code="stop_forced", message=f"{reason}.", hint=hint)


def make_final_events(
    state: State, reason: str, cause: Cause | None, unanswered: Sequence[str], *, is_recorded: bool
) -> list[NewEvent]:
    """Return the remaining events of an ended run: answers to stop requests, the cause, the state.

    Args:
        unanswered: IDs of the stop requests that no rank can answer any more.
        is_recorded: True if rank 0 has already recorded the final state.
    """
    accepted = state == "stopped"
    answer = {"name": "stop", "step": 0, "accepted": accepted, "message": reason, "arguments": None}
    final_events: list[NewEvent] = [("command", {"id": request, **answer}) for request in unanswered]
    if cause is not None:
        final_events.append(("warning" if state in SUCCESS_STATES else "error", cause.fields()))
    if cause is not None or not is_recorded:
        final_events.append(("state", {"state": state, "reason": reason}))
    return final_events


def record_end(
    run: RunDirectory, status: Status, state: State, reason: str, cause: Cause | None = None
) -> None:
    """Write the final events and status of a run in place of its owner. The caller holds the run's lock.

    Args:
        status: Its last status.

    Raises:
        OSError: If the status cannot be written.
    """
    append_final_events(run, make_final_events(state, reason, cause, (), is_recorded=False))
    reason_text = reason if cause is None else f"{cause.message} {cause.hint}"
    error = None if state in SUCCESS_STATES else reason_text
    run.write_status(replace(status, state=state, error=error, ended_unix_s=now_unix_s()))


def describe_latest_checkpoint(run: RunDirectory, num_steps: int | None) -> str:
    """Return a sentence about the checkpoint that Resume would use: the latest complete one.

    Args:
        num_steps: Last step of the run, if known.
    """
    checkpoints = sorted(run.list_checkpoints(), key=lambda item: (item.saved_unix_s, item.step))
    if not checkpoints:
        return NOTHING_SAVED_HINT
    latest = manifests.latest_intact(run, sum_bytes=manifests.QUICK_BYTES)
    if latest is None:
        return "No checkpoint of this run is complete: start the run again."
    damaged = (
        "" if latest == checkpoints[-1] else f"The checkpoint of step {checkpoints[-1].step:,} is damaged. "
    )
    if num_steps is not None and latest.step >= num_steps:
        return f"{damaged}All {num_steps:,} steps are done and saved: Resume finishes the run."
    return f"{damaged}Resume continues from the checkpoint of step {latest.step:,}."
