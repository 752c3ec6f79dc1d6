"""Precision, compiling, and how batches come to the device."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Precision, compiling, and how batches come to the device."""

    precision: str = setting(
        "fp32",
        label="Precision",
        term="bf16, fp16",
        help=(
            "bf16 and tf32 need a GPU of compute capability 8.0 (Ampere) or newer; on a T4 or RTX 20 choose "
            "fp16, which also scales the loss so that small gradients survive. On a CPU bf16 is faster where "
            "that has AMX or AVX512-BF16, and emulated, which is slower, elsewhere."
        ),
        topic="speed",
        choices=("fp32", "tf32", "bf16", "fp16"),
    )
    compile: bool = setting(
        False,
        label="Compile",
        help="torch.compile: a slower start, then faster steps on a GPU; on a CPU little gain or none. "
        "If it fails, the run continues uncompiled.",
        topic="speed",
    )
    cuda_graphs: bool = setting(
        False,
        label="CUDA graphs",
        help="With compile: a step's kernels are captured once and launched together. For small models on "
        "one GPU, where the host is the limit.",
        by_strategy=True,
        topic="speed",
    )
    data_location: str = setting(
        "auto",
        label="Data location",
        help="device: all data in the GPU's memory; host: copied batch by batch; auto: device if it fits.",
        topic="speed",
        choices=("auto", "device", "host"),
    )
    num_workers: int = setting(
        0,
        label="Loader workers",
        help="Processes per rank that load data which is not on the device.",
        topic="speed",
        minimum=0,
        maximum=256,
    )
    pin_memory: bool = setting(
        True,
        label="Pinned memory",
        help="Makes copies to a GPU faster; does nothing on the CPU.",
        topic="speed",
    )
    prefetch_factor: int = setting(
        2,
        label="Prefetch",
        help="Batches that each loader worker prepares in advance.",
        topic="speed",
        minimum=1,
        maximum=1024,
    )
