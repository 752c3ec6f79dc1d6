"""Where a run trains, on an engine that has more than one place: the partitions of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.config.settings import setting

MAX_NAME = 100
MAX_LINES = 2000


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a run trains, on an engine that has more than one place; nothing of it changes a result.

    An engine without such places takes no notice of these fields.
    """

    partition: str = setting(
        "",
        label="Partition",
        help="The cluster's nodes that the job may run on, and what is free of them. Empty: the default.",
        topic="where",
        max_length=MAX_NAME,
    )
    gpu_type: str = setting(
        "",
        label="GPU type",
        help="Empty: whichever GPUs the partition has.",
        topic="where",
        max_length=MAX_NAME,
    )
    time_limit: str = setting(
        "",
        label="Time limit",
        help="Such as 90 (minutes), 1:30:00 or 2-12:00:00. Empty: the partition's default.",
        topic="where",
        max_length=MAX_NAME,
    )
    memory_gb: int | None = setting(
        None,
        label="Memory, GB",
        help="On each machine, for all of its ranks. Empty: the cluster's default.",
        topic="where",
        minimum=1,
        maximum=100_000,
    )
    account: str = setting(
        "",
        label="Account",
        help="Whose budget the job is charged to. Empty: your default account.",
        topic="where",
        max_length=MAX_NAME,
    )
    qos: str = setting(
        "",
        label="QOS",
        help="The quality of service: its limits and priority. Empty: your default.",
        topic="where",
        max_length=MAX_NAME,
    )
    extra_lines: str = setting(
        "",
        label="Further options",
        help="Options of the job that the administrator allows.",
        topic="where",
        max_length=MAX_LINES,
    )
