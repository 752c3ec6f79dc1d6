"""How the ranks share the work."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How the ranks share the work."""

    strategy: str = setting(
        "ddp",
        label="Strategy",
        term="strategy",
        help="How the work is split over the ranks.",
        topic="parallel",
        catalog="strategies",
    )
    tensor_parallel_size: int = setting(
        2,
        label="Ranks per replica",
        term="tensor parallelism",
        help="How many ranks share one copy of the model.",
        by_strategy=True,
        topic="parallel",
        minimum=1,
        maximum=1024,
    )
    pipeline_microbatches: int = setting(
        4,
        label="Pipeline micro-batches",
        term="pipeline parallelism",
        help="The micro-batches that a batch is split into, so that all stages work at once.",
        by_strategy=True,
        topic="parallel",
        minimum=1,
        maximum=1024,
    )
    bucket_cap_mb: int = setting(
        25,
        label="Bucket size, MB",
        term="bucket",
        help="Gradients are averaged in buckets of this size.",
        by_strategy=True,
        topic="parallel",
        minimum=1,
        maximum=4096,
    )
    gradient_as_bucket_view: bool = setting(
        True,
        label="Gradients as bucket views",
        term="bucket",
        help="Gradients share the buckets' memory, which saves one copy of them.",
        by_strategy=True,
        topic="parallel",
    )
    static_graph: bool = setting(
        False,
        label="Static graph",
        help="Promise DDP that every step uses the same parameters.",
        by_strategy=True,
        topic="parallel",
    )
    gradient_compression: str = setting(
        "none",
        label="Compress gradients",
        help="Sends gradients in 16 bits, with less precision.",
        by_strategy=True,
        topic="parallel",
        choices=("none", "fp16", "bf16"),
    )
    all_reduce: str = setting(
        "auto",
        label="Average gradients",
        help="auto: through memory that CPU ranks of one machine share, where they can; "
        "backend: always over gloo or NCCL.",
        by_strategy=True,
        topic="parallel",
        choices=("auto", "backend"),
    )
    sync_batchnorm: bool = setting(
        False,
        label="SyncBatchNorm",
        term="SyncBatchNorm",
        help="BatchNorm over the batches of all ranks instead of each rank's own; GPUs only.",
        topic="parallel",
    )
