"""DDP's logger gives the time of the all-reduce once per step; without it the times are unknown."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from trainers.parallel.strategy import DdpLog

SECOND_NS = 10**9


class LoggedModel:
    """A fake DDP model that reports preset times; only the parsing of its log is tested here."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.sample_rate = 0
        self.logger = self
        self.noted: dict[str, int] = {}
        self.shown: dict[str, int] = {}

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.sample_rate = rate

    def set_runtime_stats_and_log(self) -> None:
        self.shown = self.noted

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.shown

    def time_step(self, *, start_s: int, spent_s: int, hidden_s: int) -> None:
        self.noted = {
            "backward_comm_time_start": start_s * SECOND_NS,
            "backward_comm_time": spent_s * SECOND_NS,
            "backward_compute_comm_overlap_time": hidden_s * SECOND_NS,
        }


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


def test_each_step_is_added_once() -> None:
    model: Any = LoggedModel()
    log = DdpLog(model, is_needed=True)
    assert model.sample_rate == 1, "each step is timed"
    before = log.all_reduce_times()
    assert before is not None
    assert (before.spent_s, before.hidden_s) == (0.0, 0.0), "no step has been timed"
    model.time_step(start_s=100, spent_s=3, hidden_s=1)
    log.all_reduce_times()
    log.all_reduce_times()
    model.time_step(start_s=200, spent_s=5, hidden_s=2)
    times = log.all_reduce_times()
    assert times is not None
    assert (times.spent_s, times.hidden_s, times.waited_s) == (8.0, 3.0, None)


def test_nothing_is_timed_where_somebody_else_does_or_the_gpu_would_wait() -> None:
    for is_needed, device_type in ((False, "cpu"), (True, "cuda")):
        model: Any = LoggedModel()
        model.device_type = device_type
        assert DdpLog(model, is_needed=is_needed).all_reduce_times() is None
        assert model.sample_rate > 10**9, "DDP times no step for its log either"


def test_a_torch_without_the_log_leaves_the_times_unknown() -> None:
    class Bare:
        device_type = "cpu"

    model: Any = Bare()
    assert DdpLog(model, is_needed=True).all_reduce_times() is None
