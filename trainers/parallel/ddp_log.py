"""What DDP's own log says of each all-reduce: how long it took, and how much of it backward hid."""

from __future__ import annotations

import re
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainers.parallel.strategy import AllReduceTimes

# Far beyond any run.
_NEVER = 2**31 - 1
_NANOSECONDS = 1e9


class DdpLog:
    """Adds up the times of the all-reduces, where that costs nothing.

    On the CPU DDP notes moments of the host. On a GPU it would wait for the GPU in each step that it times,
    so there it times none. What is read is private to torch; where a version lacks it, the times are unknown.

    Args:
        is_needed: nobody else measures the all-reduces of this model.
    """

    def __init__(self, model: DistributedDataParallel, *, is_needed: bool) -> None:
        set_sample_rate = getattr(model, "_set_ddp_runtime_logging_sample_rate", None)
        self._read = getattr(model, "_get_ddp_logging_data", None)
        self._update = getattr(getattr(model, "logger", None), "set_runtime_stats_and_log", None)
        self._is_on = (
            is_needed
            and model.device_type == "cpu"
            and dist.get_world_size() > 1
            and None not in (set_sample_rate, self._read, self._update)
        )
        if set_sample_rate is not None:
            set_sample_rate(1 if self._is_on else _NEVER)
        self._spent_ns = self._hidden_ns = self._newest = 0

    def all_reduce_times(self) -> AllReduceTimes | None:
        """Return what all of them have taken so far; asked after each step, for DDP keeps only the newest."""
        if not self._is_on:
            return None
        data = self._newest_step()
        began = data.get("backward_comm_time_start", 0)
        if began > self._newest:
            self._newest = began
            self._spent_ns += data["backward_comm_time"]
            self._hidden_ns += data["backward_compute_comm_overlap_time"]
        return AllReduceTimes(spent_s=self._spent_ns / _NANOSECONDS, hidden_s=self._hidden_ns / _NANOSECONDS)

    def bucket_places(self) -> list[list[int]]:
        """Return for each bucket the places of its parameters among those trained; empty where unknown.

        DDP lays its buckets out anew after the first backward pass.
        """
        if self._update is None or self._read is None:
            return []
        places = str(self._newest_step().get("rebuilt_per_bucket_param_indices", ""))
        if not re.fullmatch(r"\d+( \d+)*(, \d+( \d+)*)*", places):
            return []
        return [[int(place) for place in bucket.split()] for bucket in places.split(",")]

    def _newest_step(self) -> dict[str, Any]:
        assert self._read is not None
        assert self._update is not None
        self._update()
        data: dict[str, Any] = self._read()
        return data
