"""Errors reported for out of memory, a kernel assert and a killed rank. The GPU is free afterwards."""

from __future__ import annotations

import pytest

from tests.faults.misbehaving import misbehaving
from tests.faults.test_bad_plugin import CopyWith, copy_with
from tests.gpu.place import Place
from tests.harness import ANSWER_TIMEOUT_S, Launcher, LiveRun
from trainers.contract.events import Event
from trainers.machine import nvml

__all__ = ["copy_with"]

END_S = 180.0
TOO_MUCH = 'x.new_empty(2**50, dtype=__import__("torch").float32)'
OUT_OF_BOUNDS = 'x.new_zeros(3)[__import__("torch").full((1,), 7, device=x.device)].sum().item()'


def failing(copy: CopyWith, place: Place, statement: str) -> LiveRun:
    """Start a run whose only rank executes a statement at its fifth step."""
    files = misbehaving(statement, rank=0)
    return copy(files).start(model="misbehaves", device=place.device, nproc_per_node=1, num_epochs=100_000)


def error_of(live: LiveRun, place: Place) -> Event:
    """Wait for the failure and return its error. No process remains, not on the GPU either."""
    live.wait_for("step", lambda event: event["step"] >= 1)
    pids = set(live.ranks().values())
    status = live.wait_for_end(END_S)
    assert status.state == "failed", live.story()
    live.wait_for_no_process(ANSWER_TIMEOUT_S)
    place.wait_until_nobody_of(pids)
    (error,) = live.events("error")
    assert error["rank"] == 0 and live.states()[-1] == "failed"
    return error


def test_out_of_memory_is_told_with_what_helps(copy_with: CopyWith, seen: Place) -> None:
    error = error_of(failing(copy_with, seen, TOO_MUCH), seen)
    assert error["code"] == "out_of_memory", error
    assert error["message"].startswith("Rank 0 failed: ") and "smaller batch" in error["hint"]
    assert "misbehaves.py" in error["traceback"]


@pytest.mark.many_gpus
def test_a_full_gpu_is_named_by_its_index_on_the_machine(
    copy_with: CopyWith, two_gpus: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run sees only the last GPU, which torch calls GPU 0."""
    last = two_gpus.num - 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nvml.named(two_gpus.uuids[last]))
    error = error_of(failing(copy_with, two_gpus, TOO_MUCH), two_gpus)
    assert f"GPU {two_gpus.index_of(last)} has a total capacity" in error["message"], error


def test_an_index_out_of_bounds_is_told_by_the_device_s_own_assert(copy_with: CopyWith, seen: Place) -> None:
    """On a GPU the kernel asserts and the context is lost.

    CUDA reports the error at a later line that synchronizes.
    """
    error = error_of(failing(copy_with, seen, OUT_OF_BOUNDS), seen)
    assert error["code"] == ("gpu_error" if seen.is_gpu else "rank_raised"), error
    assert ("device-side assert" if seen.is_gpu else "out of bounds") in error["message"]
    assert "misbehaves.py" in error["traceback"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_killed_rank_is_named_and_its_gpu_is_free_afterwards(
    launcher: Launcher, seen: Place, num_ranks: int
) -> None:
    if num_ranks > seen.num:
        pytest.skip("torch sees one GPU here, and this needs two")
    live = launcher.start(device=seen.device, nproc_per_node=num_ranks, num_epochs=100_000)
    live.wait_for_step(5)
    pids = set(live.ranks().values())
    live.rank(num_ranks - 1).kill()
    status = live.wait_for_end(END_S)
    assert status.state == "failed", live.story()
    (error,) = live.events("error")
    assert (error["code"], error["rank"]) == ("rank_killed", num_ranks - 1), error
    assert f"Rank {num_ranks - 1} was killed (SIGKILL)" in error["message"]
    live.wait_for_no_process(ANSWER_TIMEOUT_S)
    seen.wait_until_nobody_of(pids)
