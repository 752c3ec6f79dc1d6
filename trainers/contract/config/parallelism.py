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
        help="How the work is spread over the ranks.",
        topic="parallel",
        catalog="strategies",
    )
    tensor_parallel_size: int = setting(
        2,
        label="Ranks per model copy",
        help="How many ranks hold one copy of the model between them.",
        by_strategy=True,
        topic="parallel",
        minimum=1,
        maximum=1024,
    )
    pipeline_microbatches: int = setting(
        4,
        label="Pipeline pieces",
        help="The pieces a batch is cut into, so that the stages can work at once.",
        by_strategy=True,
        topic="parallel",
        minimum=1,
        maximum=1024,
    )
    bucket_cap_mb: int = setting(
        25,
        label="Bucket, MB",
        help="Gradients are sent in buckets of this size.",
        by_strategy=True,
        topic="parallel",
        minimum=1,
        maximum=4096,
    )
    gradient_as_bucket_view: bool = setting(
        True,
        label="Gradients live in the buckets",
        help="Saves one copy of all gradients.",
        by_strategy=True,
        topic="parallel",
    )
    static_graph: bool = setting(
        False,
        label="Static graph",
        help="Promises that every step uses the same parameters.",
        by_strategy=True,
        topic="parallel",
    )
    gradient_compression: str = setting(
        "none",
        label="Compress gradients",
        help="Sends gradients in half the bits, at some loss of exactness.",
        by_strategy=True,
        topic="parallel",
        choices=("none", "fp16", "bf16"),
    )
    sync_batchnorm: bool = setting(
        False,
        label="SyncBatchNorm",
        help="Batch norm over the global batch instead of each GPU's own part; GPUs only.",
        topic="parallel",
    )
