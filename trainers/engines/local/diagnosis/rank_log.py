"""What the end of a rank's log says: of a rank that NCCL's watchdog aborted nothing else tells why.

The words are those of torch's ProcessGroupNCCL and CUDAException, of NCCL, and of gloo.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What a healthy rank says when another one has gone: a consequence, never the cause.
PEER_ERRORS = re.compile(
    r"connection closed by (remote )?peer|connection reset by peer|broken pipe"
    r"|remote process (has )?exited|ncclRemoteError|connection refused|socket closed"
    r"|NCCL (communicator|error).*(abort|remote)|recvValue failed",
    re.IGNORECASE,
)
TIMEOUT_ERRORS = re.compile(
    r"timed out waiting \d+ ?ms|wait timeout after|collective operation timeout", re.IGNORECASE
)
# What a rank's own GPU has against what the rank did, or what the GPU suffers from.
GPU_ERRORS = re.compile(
    r"(CUDA|CUDA driver|HIP|cuBLAS|cuDNN) error: |CUDA out of memory|device-side assert|illegal memory access"
    r"|uncorrectable ECC|(NCCL error: )?unhandled cuda error|ncclUnhandledCudaError"
    r"|Cuda failure|\bXid\b|CU(BLAS|DNN|SOLVER|SPARSE|RAND|FFT)_|Duplicate GPU detected",
    re.IGNORECASE,
)
# Libraries of CUDA have statuses of their own for it: CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED,
# CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED.
OUT_OF_MEMORY = re.compile(
    r"out of memory|memoryerror|(can't|cannot) allocate memory|\bCU[A-Z]+_(\w+_)?ALLOC(ATION)?_FAILED\b",
    re.IGNORECASE,
)
# NCCL's transport within a machine, and what torch shares between processes.
SHARED_MEMORY_FULL = re.compile(
    r"shared memory segment /dev/shm.{0,200}(No space left|Cannot allocate)"
    r"|file </torch_.{0,200}No space left|out of shared memory",
    re.IGNORECASE,
)

# Where a start of the run begins in a log that earlier starts have written to as well.
_START = re.compile(r"rank \d+: process \d+, rank \d+ of \d+, on ")
_LONGEST = 300

_BLOCKING = "Started by hand with CUDA_LAUNCH_BLOCKING=1 in front, it stops at the line that asked for it."
_TORCH_INDEX = re.compile(r"\b(GPU |cuda:)(\d{1,3})\b")
_NOT_DETERMINISTIC = re.compile(
    r"does not have a deterministic implementation|this operation is not deterministic because"
)
_NCCL_REASON = re.compile(r"\bLast error:\s*([^\n]+)")
_GPU_HINTS = (
    (
        re.compile(r"Duplicate GPU detected", re.IGNORECASE),
        "Two ranks are on one GPU, which NCCL refuses; its MIG instances count as that GPU. ",
        "Choose at most one rank per GPU.",
    ),
    (
        re.compile(r"device-side assert", re.IGNORECASE),
        "The usual cause is an index out of range: a label or a token that the model has no entry for. ",
        _BLOCKING,
    ),
    (
        re.compile(r"ECC|\bXid\b|fallen off the bus|GPU is lost", re.IGNORECASE),
        "The GPU itself failed: the system log names the fault (search for Xid); it may need a reset. ",
        "",
    ),
    (
        re.compile(r"illegal memory access|misaligned address|unspecified launch failure", re.IGNORECASE),
        "A kernel accessed memory that is not its own. ",
        _BLOCKING,
    ),
)


def fatal_words(log_end: str) -> str:
    """Return what ended a rank that could not say so itself: the first such words of its last start.

    What comes later follows from the first: a rank whose peers have gone may fail on its GPU, too.
    Empty where there are none.
    """
    starts = list(_START.finditer(log_end))
    text = log_end[starts[-1].end() :] if starts else log_end
    found = [match for words in (GPU_ERRORS, TIMEOUT_ERRORS, PEER_ERRORS) if (match := words.search(text))]
    if not found:
        return ""
    first = min(found, key=lambda match: match.start())
    return text[first.start() :].splitlines()[0].strip()[:_LONGEST]


def gpu_hint(message: str) -> str | None:
    """Say what to do about a GPU's error; None when it is none, or it is about memory that is full."""
    if GPU_ERRORS.search(message) is None or OUT_OF_MEMORY.search(message):
        return None
    for words, what, how in _GPU_HINTS:
        if words.search(message):
            return f"{what}{how}".strip()
    return f"An error of the GPU or its driver. {_BLOCKING}"


def kind_and_hint(message: str) -> tuple[str, str] | None:
    """Return the code of an error that a rank raised, and what to do; None where only the traceback says."""
    if SHARED_MEMORY_FULL.search(message):
        return "shared_memory_full", (
            "Shared memory (/dev/shm) is full: ranks and loader workers exchange data there. Give it more "
            "(in a container: docker run --shm-size=8g), or use fewer loader workers."
        )
    if OUT_OF_MEMORY.search(message):
        return "out_of_memory", "Choose a smaller batch per GPU or a smaller model, then start again."
    if _NOT_DETERMINISTIC.search(message):
        return "rank_raised", (
            "This operation has no deterministic algorithm here: turn Deterministic off, or choose another "
            "model."
        )
    hint = gpu_hint(message)
    return None if hint is None else ("gpu_error", hint)


def shortened(message: str) -> str:
    """Return an error of CUDA or NCCL without the library's advice: its first line, and NCCL's reason."""
    first = message.strip().splitlines()[0]
    reason = _NCCL_REASON.search(message)
    return first if reason is None or reason[1] in first else f"{first.rstrip('.,:')}: {reason[1].strip()}"


def with_machine_indices(message: str, indices: Sequence[int | None]) -> str:
    """Return a message in which GPUs have their index on the machine.

    torch counts within CUDA_VISIBLE_DEVICES ("GPU 0 has a total capacity of", "cuda:0").

    Args:
        indices: of the visible GPUs, in torch's order; None where it is not known.
    """

    def of_machine(found: re.Match[str]) -> str:
        number = int(found[2])
        index = indices[number] if number < len(indices) else None
        return found[0] if index is None else f"GPU {index}"

    return _TORCH_INDEX.sub(of_machine, message)
