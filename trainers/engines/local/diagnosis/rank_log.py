"""What the end of a rank's log says: of a rank that NCCL's watchdog aborted nothing else tells why.

The words are those of torch's ProcessGroupNCCL and CUDAException, of NCCL, and of gloo.
"""

from __future__ import annotations

import re

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
    r"|Cuda failure|\bXid\b|CU(BLAS|DNN)_STATUS_",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(r"out of memory|memoryerror|(can't|cannot) allocate memory", re.IGNORECASE)

# Where a start of the run begins in a log that earlier starts have written to as well.
_START = re.compile(r"rank \d+: process \d+, rank \d+ of \d+, on ")
_LONGEST = 300

_BLOCKING = "Started by hand with CUDA_LAUNCH_BLOCKING=1 in front, it stops at the line that asked for it."
_GPU_HINTS = (
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
