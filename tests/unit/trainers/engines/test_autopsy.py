"""Tests of failure diagnosis from the files that torchrun leaves, in the formats of torch 2.13."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainers.contract import rundir
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.status import RANK_KILL_REQUESTED
from trainers.engines.local import diagnosis
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.torchrun import exit_line
from trainers.files import json_files

SUMMARY = """\
W1121 05:10:01.123000 4242 torch/distributed/elastic/multiprocessing/api.py:1010] \
Sending process 4301 closing signal SIGTERM
E1121 05:10:01.456000 4242 torch/distributed/elastic/multiprocessing/api.py:984] \
failed (exitcode: {first_code}) local_rank: {first} (pid: 4300) of binary: /usr/bin/python3
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
trainers.worker FAILED
------------------------------------------------------------
Failures:
{others}------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_05:10:01
  host      : lab-pc
  rank      : {first} (local_rank: {first})
  exitcode  : {first_code} (pid: 4300)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4300
============================================================
"""
OTHER = """\
[1]:
  time      : 2026-11-21_05:10:02
  host      : lab-pc
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 4301)
  error_file: /tmp/torchelastic/error.json
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
LOST_PEER = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:538] "
    "Connection closed by peer [127.0.0.1]:33333"
)
TIMED_OUT = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] "
    "Timed out waiting 60000ms for recv operation to complete"
)

# Ends of logs, modelled on messages in torch's ProcessGroupNCCL.cpp and CUDAException.cpp and in NCCL's
# transport; none was recorded on a GPU machine.
SAMPLE_START = "05:09:31 rank {rank}: process 430{rank}, rank {rank} of 2, on cuda:{rank}\n"
SAMPLE_WATCHDOG = (
    "[rank{rank}]:[E1121 05:10:00.1 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Process group watchdog thread terminated with exception: {why}\n"
)
SAMPLE_ASSERT = (
    "CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
SAMPLE_PEER_EXITED = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer localhost<45011>\n"
)
SAMPLE_ABORTED = "NCCL communicator was aborted on rank {rank}."
SAMPLE_TERMINATE = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {why}"


class Remains:
    """The log files of a failed run."""

    def __init__(self, folder: Path) -> None:
        self.run = rundir.create(folder, Config(nproc_per_node=2))
        self.log = self.run.logs / "torchrun.log"

    def summary(self, first: int, first_code: int, others: dict[int, int] | None = None) -> None:
        blocks = "".join(OTHER.format(rank=rank, code=code) for rank, code in (others or {}).items())
        text = SUMMARY.format(first=first, first_code=first_code, others=blocks or "  <NO_OTHER_FAILURES>\n")
        self.log.write_text(text)

    def error_file(self, rank: int, message: str, timestamp: int = 100, folder: str = "torchrun") -> None:
        """Write the error file of a rank, as `record` does; torchrun counts each machine's ranks from 0."""
        path = self.run.logs / folder / "none_abc123" / "attempt_0" / str(rank) / "error.json"
        path.parent.mkdir(parents=True)
        about = {"py_callstack": f"Traceback of rank {rank}", "timestamp": str(timestamp)}
        path.write_text(json.dumps({"message": {"message": message, "extraInfo": about}}))

    def log_end(self, rank: int, why: str) -> None:
        """Append the messages that NCCL's watchdog prints before it aborts."""
        sample = SAMPLE_START + SAMPLE_WATCHDOG + SAMPLE_TERMINATE
        with self.run.rank_log(rank).open("a") as log:
            log.write(sample.format(rank=rank, why=why.format(rank=rank)))

    def explain(self, exit_code: int = 1) -> Cause:
        return diagnosis.explain_end(self.run, exit_code)


@pytest.fixture
def remains(tmp_path: Path) -> Remains:
    return Remains(tmp_path)


KILLED = "Rank 1 was killed (SIGKILL), by the system or by a user."
NO_THING = "ValueError: no such thing"
# Exit codes by rank, the first failed one first; errors by rank, the oldest first; code, rank and words.
ENDS: dict[str, tuple[dict[int, int], dict[int, str], tuple[str, int, str]]] = {
    "only its peer left an error": ({1: -9, 0: 1}, {0: LOST_PEER}, ("rank_killed", 1, KILLED)),
    "compiled code": ({0: -11, 1: -15}, {}, ("rank_crashed", 0, "SIGSEGV")),
    "older error of its peer": (
        {0: 1, 1: 1},
        {0: LOST_PEER, 1: NO_THING},
        ("rank_raised", 1, f"failed: {NO_THING}."),
    ),
    "aborted peer": ({0: -6, 1: 1}, {1: NO_THING}, ("rank_raised", 1, NO_THING)),
    "peer that torchrun ended": ({0: -15, 1: 1}, {1: NO_THING}, ("rank_raised", 1, NO_THING)),
    "lost each other": ({0: 1, 1: 1}, {1: LOST_PEER, 0: LOST_PEER}, ("connection_lost", 1, "")),
    "terminated": ({1: -15, 0: -15}, {}, ("rank_terminated", 1, "")),
    "never arrived": ({0: 1, 1: -15}, {0: TIMED_OUT}, ("collective_timeout", 1, "rank 1 never arrived")),
}


@pytest.mark.parametrize("name", ENDS)
def test_rank_that_caused_the_end_is_named(remains: Remains, name: str) -> None:
    codes, errors, (code, rank, words) = ENDS[name]
    (first, first_code), *others = codes.items()
    remains.summary(first, first_code, dict(others))
    for timestamp, (failed, message) in enumerate(errors.items()):
        remains.error_file(failed, message, timestamp)
    cause = remains.explain()
    assert (cause.code, cause.rank) == (code, rank)
    assert words in cause.message
    assert code != "rank_raised" or cause.traceback == "Traceback of rank 1"
    assert code != "rank_crashed" or "logs/rank_0.log" in cause.hint


def test_logs_of_ranks_that_nccl_aborted_name_the_one_that_left_or_was_killed(remains: Remains) -> None:
    remains.summary(0, -6)
    remains.log_end(0, SAMPLE_PEER_EXITED)
    assert (remains.explain().code, remains.explain().rank) == ("rank_left", 1)
    remains.run.rank_log(0).unlink()
    remains.summary(0, -6, {1: -9})
    for why in (SAMPLE_ASSERT, SAMPLE_PEER_EXITED):  # the first one is of an earlier start
        remains.log_end(0, why)
    assert (remains.explain().code, remains.explain().rank) == ("rank_killed", 1)


@pytest.mark.parametrize(
    ("log", "exit_code", "code", "words"),
    [
        ("Traceback\n…api.SignalException: Process 2979 got signal: 15\n", 1, "torchrun_terminated", ""),
        ("", -15, "torchrun_terminated", ""),
        ("usage: torchrun\ntorchrun: error: no argument: --x\n", 2, "torchrun_failed", "argument: --x"),
        ("", 1, "torchrun_failed", "it wrote nothing"),
    ],
    ids=["told to end", "told to end before it listened", "could not start", "silent"],
)
def test_torchrun_that_ended_without_a_rank_says_why(
    remains: Remains, log: str, exit_code: int, code: str, words: str
) -> None:
    remains.log.write_text(log)
    cause = remains.explain(exit_code)
    assert cause.code == code and words in cause.message


def test_rank_that_somebody_asked_to_be_killed_is_no_riddle(remains: Remains) -> None:
    remains.summary(1, -9, {0: 1})
    starting = {"state": "starting", "reason": ""}
    asked = {"code": RANK_KILL_REQUESTED, "message": "", "hint": "", "rank": 1, "traceback": None}
    file = EventFile(remains.run.events)
    file.append([(1.0, "state", starting), (2.0, "warning", asked)])
    cause = remains.explain()
    assert (cause.code, cause.rank) == ("rank_killed", 1)
    assert cause.message == "Rank 1 was killed (SIGKILL), as requested on its page."
    file.append([(3.0, "state", starting)])
    file.close()
    assert "by the system or by a user" in remains.explain().message, "that was of an earlier start"


@pytest.mark.parametrize("peers_words", [SAMPLE_PEER_EXITED, SAMPLE_ABORTED])
def test_rank_that_its_own_gpu_aborted_is_the_cause_and_not_the_one_that_missed_it(
    remains: Remains, peers_words: str
) -> None:
    remains.summary(0, -6, {1: -6})
    remains.log_end(0, peers_words)
    remains.log_end(1, SAMPLE_ASSERT + SAMPLE_PEER_EXITED)
    cause = remains.explain()
    assert (cause.code, cause.rank) == ("gpu_error", 1)
    assert cause.message == "Rank 1 failed: CUDA error: device-side assert triggered."
    assert "out of range" in cause.hint and "CUDA_LAUNCH_BLOCKING=1" in cause.hint


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "Xid"),
        ("NCCL error: unhandled cuda error, NCCL version 2.27.5", "CUDA_LAUNCH_BLOCKING=1"),
    ],
)
@pytest.mark.parametrize("is_aborted", [True, False])
def test_error_of_a_gpu_is_named_with_what_to_do(
    remains: Remains, error: str, hint: str, is_aborted: bool
) -> None:
    remains.summary(1, -6 if is_aborted else 1, {0: -15})
    if is_aborted:
        remains.log_end(1, error)
    else:
        remains.error_file(1, f"torch.AcceleratorError: {error}\nFor debugging consider passing more")
    cause = remains.explain()
    assert (cause.code, cause.rank) == ("gpu_error", 1)
    assert cause.message.endswith(f"{error}.") and hint in cause.hint


@pytest.mark.parametrize(
    "message",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_out_of_memory_says_what_to_do(remains: Remains, message: str) -> None:
    remains.summary(1, 1)
    remains.error_file(1, message)
    cause = remains.explain()
    assert (cause.code, cause.rank) == ("out_of_memory", 1)
    assert "smaller batch" in cause.hint


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/NCCLUtils.cpp:77"
    ", {kind} (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n{status}: …\nLast error:\n{last}"
)
NOT_DETERMINISTIC = (
    "RuntimeError: adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you "
    "set 'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation."
)
SEGMENT = "Error while creating shared memory segment /dev/shm/nccl-ab12 (size 33030528), error: {why}"


FULL_SEGMENT = SEGMENT.format(why="No space left on device (28)")
TWICE = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
MET = {
    "NCCL's segment": (
        NCCL.format(kind="unhandled system error", status="ncclSystemError", last=FULL_SEGMENT),
        ("shared_memory_full", "No space left on device (28)", "--shm-size"),
    ),
    "torch's file": (
        "RuntimeError: unable to write to file </torch_77_12_0>: No space left on device (28)",
        ("shared_memory_full", "unable to write", "fewer loader workers"),
    ),
    "duplicate GPU": (
        NCCL.format(kind="invalid usage", status="ncclInvalidUsage", last=TWICE),
        ("gpu_error", "rank 1 and rank 0 both on CUDA device 1000", "one rank per GPU"),
    ),
    "not deterministic": (
        NOT_DETERMINISTIC,
        ("rank_raised", "deterministic implem", "turn Deterministic off"),
    ),
    "no GPU": (
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        ("rank_raised", "no GPUs found", "“Run on CPU ranks”"),
    ),
}


@pytest.mark.parametrize("name", MET)
def test_what_people_meet_on_gpus_says_what_to_do(remains: Remains, name: str) -> None:
    message, (code, said, hint) = MET[name]
    remains.summary(1, 1)
    remains.error_file(1, message)
    cause = remains.explain()
    assert (cause.code, cause.rank) == (code, 1)
    assert said in cause.message and hint in cause.hint, cause


def test_when_all_waited_the_rank_at_the_lowest_step_is_named_or_none(remains: Remains) -> None:
    remains.summary(0, 1, {1: 1})
    for rank in (0, 1):
        remains.error_file(rank, TIMED_OUT)
    assert remains.explain().rank is None, "nothing is known, so nobody is blamed"
    file = EventFile(remains.run.events)
    file.append([(1.0, "ranks", {"ranks": [{"rank": 0, "step": 4}, {"rank": 1, "step": 7}]})])
    file.close()
    assert remains.explain().rank == 0


def test_what_other_machines_know_of_their_ranks_is_the_cause(remains: Remains) -> None:
    """Rank 0 sees a closed connection; torchrun of rank 1 has recorded the reason."""
    config = Config(num_nodes=2, nproc_per_node=1)
    json_files.write_json_atomically(remains.run.config, config.to_json())
    remains.summary(0, 1)
    remains.error_file(0, LOST_PEER)
    cause = remains.explain()
    assert cause.code == "rank_left" and "exit()" not in f"{cause.message} {cause.hint}"
    here = (remains.run, 1)
    cause = diagnosis.explain_end(*here, lambda rank: "Node 0 is silent." if rank == 1 else "")
    assert cause.code == "node_ended" and cause.rank is None and "Node 0 is silent." in cause.message
    log = remains.log.with_name(f"{remains.log.stem}_1{remains.log.suffix}")
    log.write_text(exit_line(0, -9))
    assert (diagnosis.explain_end(*here).code, diagnosis.explain_end(*here).rank) == ("rank_killed", 1)
    assert diagnosis.explain_end(*here, lambda _rank: "Node 0 is silent.").code == "node_ended", (
        "we killed it"
    )


@pytest.mark.parametrize("has_summary", [False, True])
def test_ranks_of_another_machine_are_counted_there_from_its_first_one(
    remains: Remains, has_summary: bool
) -> None:
    config = Config(num_nodes=2, nproc_per_node=2)
    json_files.write_json_atomically(remains.run.config, config.to_json())
    remains.summary(0, 1, {1: 1})
    for rank in (0, 1):
        remains.error_file(rank, LOST_PEER)
    remains.error_file(0, "ValueError: rank 2 saw a negative size", folder="torchrun_1")
    remains.error_file(1, LOST_PEER, timestamp=101, folder="torchrun_1")
    words = "\n".join([exit_line(0, 1), exit_line(1, 1)]) + "\n"
    if has_summary:
        words += SUMMARY.format(first=2, first_code=1, others=OTHER.format(rank=3, code=1))
        words = words.replace("(local_rank: 2)", "(local_rank: 0)").replace("local_rank: 3", "local_rank: 1")
    (remains.run.logs / "torchrun_1.log").write_text(words)
    cause = remains.explain()
    assert (cause.code, cause.rank) == ("rank_raised", 2)
    assert cause.message == "Rank 2 failed: ValueError: rank 2 saw a negative size."


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"message": null}', '{"message": "plain text"}', '{"message": {}}', "{}"]
)
def test_damaged_error_file_does_not_break_the_autopsy(remains: Remains, damage: str) -> None:
    path = remains.run.logs / "torchrun" / "x" / "attempt_0" / "1" / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    remains.summary(1, 1)
    cause = remains.explain()
    assert cause.rank == 1 and cause.code == "rank_raised"
