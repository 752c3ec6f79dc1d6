"""A synthetic report of a machine with GPUs, to test its display on machines without GPUs."""

from __future__ import annotations

from typing import Any

GB = 10**9


def fake_gpu(index: int, processes: list[dict[str, Any]] | None, **readings: Any) -> dict[str, Any]:
    """Return a GPU in the format of `/live/machine`."""
    usual = {
        "answers": True,
        "name": "Fake GPU 80GB",
        "utilization_percent": 0.0,
        "memory_used_bytes": 1 * GB,
        "memory_total_bytes": 80 * GB,
        "temperature_celsius": 31,
        "power_watts": 71.3,
    }
    return {**usual, **readings, "index": index, "processes": processes}


def fake_process(pid: int, **facts: Any) -> dict[str, Any]:
    """Return a GPU process in the format of `/live/machine`."""
    return {"pid": pid, "run_id": None, "name": "python", "user": "ada", "memory_used_bytes": 2 * GB, **facts}


def with_fake_gpus(report: dict[str, Any]) -> dict[str, Any]:
    """Add four synthetic GPUs to a real report: used by us, used by another user, idle, and unresponsive."""
    ours = fake_process(4242, run_id="digits-mlp-1", memory_used_bytes=18 * GB)
    theirs = fake_process(77, name="<b>blender</b>", memory_used_bytes=30 * GB)
    unseen = fake_process(99, name=None, user=None, memory_used_bytes=None)
    gpus = [
        fake_gpu(0, [ours], utilization_percent=97.0, memory_used_bytes=19 * GB, power_watts=402.8),
        fake_gpu(1, [theirs, unseen], utilization_percent=45.0, memory_used_bytes=33 * GB),
        fake_gpu(2, []),
        fake_gpu(
            3,
            None,
            answers=False,
            name=None,
            utilization_percent=None,
            memory_used_bytes=None,
            memory_total_bytes=None,
            temperature_celsius=None,
            power_watts=None,
        ),
    ]
    runs = [{"run_id": "digits-mlp-1", "num_processes": 4, "memory_bytes": 2 * GB}]
    forecast = {
        "state": "lasts",
        "measured_over_s": 252.0,
        "needs_s": 30.0,
        "bytes_per_s": 230_000.0,
        "lasts_s": 275_000.0,
    }
    return {
        **report,
        "summary": "3 GPUs (Fake GPU 80GB), 2 CPU cores.",
        "gpus": gpus,
        "num_gpus_for_runs": 3,
        "runs": runs,
        "memory": {**report["memory"], "runs_bytes": 2 * GB},
        "disk": {**report["disk"], "runs_bytes": 5 * GB, "forecast": forecast},
        "communication": {**report["communication"], "backend": "nccl", "most_ranks": 3, "default_ranks": 3},
    }
