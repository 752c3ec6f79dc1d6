"""Simulated ("paper") GPUs: torch's real CUDA build on a machine without a GPU and a driver.

`tests.paper_gpu.environment()` returns the variables of a process with paper GPUs. torch finds this package
by its entry point (`torch.backends`) and calls `install` at the end of `import torch`, in every process.

Variables, read once per process; the children of a process inherit them:

PAPER_GPU         the GPUs, as `T4x2`, `H100x8`, `A100,T4x2`; profiles are T4, RTX3060, A100 and H100. An A100
                  or an H100 can be divided (MIG): `A100/3g.40gb+3g.40gb`. Empty or unset: no GPU, no driver.
PAPER_DRIVER      branch of the driver: 470, 510, 535, 550, 570 or 580 (default). Below 580, torch's CUDA 13
                  build finds the driver too old. `environment()` also chooses the NVML of that branch.
PAPER_MEMORY_MIB  memory of each GPU; overrides its profile.
PAPER_COMPUTE     1 (default): torch's operators are computed on the CPU and numbers are real. 0: kernels
                  compute nothing, so the host needs the same time as with a GPU, and torch.compile uses
                  Triton, whose launches are counted.
PAPER_KERNEL_US   duration of each kernel in microseconds, 0 by default.
PAPER_QUEUE       launches that a stream holds before the next one blocks the host, 1024 by default.
PAPER_NCCL_JOIN_S seconds after which a communicator with missing ranks fails, 600 by default.
PAPER_STATE       folder shared between processes: which process is on which GPU, and NCCL's memory.
PAPER_COUNTS      folder for counters, one file `<pid>.counts` per process; also after os._exit and SIGKILL.

Counts: `counts()` returns those of this process, `read_counts(folder)` those of all processes that ran with
PAPER_COUNTS, and `python -m paper_gpu FOLDER` prints them as JSON. `COUNTERS` lists their names. The cost of
a step is the difference of two calls, with torch.cuda.synchronize() before each. Peak memory as counted by
torch's allocator (torch.cuda.max_memory_allocated) is exact, too; `peak_allocated_bytes` counts cudaMalloc.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

# In the order of `Counters` in cpp/runtime.h.
COUNTERS = (
    "kernel_launches",  # torch's and Triton's kernels
    "library_launches",  # computing calls of cuBLAS, and convolutions that cuDNN would compute
    "graph_launches",
    "host_to_device_copies",
    "host_to_device_bytes",
    "device_to_host_copies",
    "device_to_host_bytes",
    "device_to_device_copies",
    "device_to_device_bytes",
    "memsets",
    "memset_bytes",
    "collectives",  # calls of NCCL; for a send and its receive only the send
    "collective_bytes",
    "synchronizations",  # calls in which the host waits for the GPU
    "allocations",  # by cudaMalloc
    "allocated_bytes",
    "peak_allocated_bytes",
    "operators",  # with PAPER_COMPUTE=1: operators that launched a kernel, without nested ones
    "operator_bytes_read",  # their CUDA arguments, each once
    "operator_bytes_written",  # their results, and arguments that they change
    "uncomputed_launches",  # with PAPER_COMPUTE=1: kernels without a simulated effect, such as custom ones
)


def counts() -> dict[str, int]:
    """Return the counts of this process; `launches` is the sum of all kinds of launches."""
    number = ctypes.c_int()
    function = _runtime().paper_counters
    function.restype = ctypes.POINTER(ctypes.c_uint64)
    values = function(ctypes.byref(number))
    assert number.value == len(COUNTERS), "COUNTERS names each field of cpp/runtime.h's Counters"
    return _named(tuple(values[index] for index in range(number.value)))


def read_counts(folder: Path) -> dict[int, dict[str, int]]:
    """Return the counts of every process that ran with PAPER_COUNTS=folder and opened a GPU, by PID."""
    layout = struct.Struct(f"<{len(COUNTERS)}Q")
    return {
        int(path.stem): _named(layout.unpack(path.read_bytes())) for path in sorted(folder.glob("*.counts"))
    }


def _named(values: tuple[int, ...]) -> dict[str, int]:
    found = dict(zip(COUNTERS, values, strict=True))
    return {
        "launches": found["kernel_launches"] + found["library_launches"] + found["graph_launches"],
        **found,
    }


def _runtime() -> ctypes.CDLL:
    """Return libpaper_cuda.so, which is already loaded."""
    return ctypes.CDLL(None)


def install() -> None:
    """Prepare torch after its import. Does nothing if this process has no paper GPUs."""
    if not os.environ.get("PAPER_GPU") or not hasattr(_runtime(), "paper_close"):
        return
    import torch

    # Streams must end before torch's objects are destroyed. Programs that end by os._exit need no cleanup.
    atexit.register(_runtime().paper_close)
    # cuDNN has its own cudart, which does not support paper GPUs. Without it torch uses its own kernels for
    # batch norm and attention; cpp/dispatch.cpp implements convolutions.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    if os.environ.get("PAPER_COMPUTE", "1") != "0":
        library = ctypes.CDLL(str(Path(os.environ["PAPER_BUILD"]) / "libpaper_torch.so"))
        library.paper_compute()
        _replace_inductor(torch)


def _replace_inductor(torch: Any) -> None:
    """Make torch.compile execute captured graphs operator by operator: Triton's kernels compute nothing."""
    has_said = False

    def run_eagerly(self: Any, model: Any, inputs: Any) -> Any:
        nonlocal has_said
        if not has_said:
            has_said = True
            print(
                "paper GPU: torch.compile captures graphs and executes them operator by operator "
                "(aot_eager): nothing computes the kernels of Triton",
                file=sys.stderr,
                flush=True,
            )
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend("aot_eager")(model, inputs)

    torch._TorchCompileInductorWrapper.__call__ = run_eagerly
