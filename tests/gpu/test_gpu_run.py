"""Runs on real GPUs: NCCL and the measurements of each GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.place import Place
from tests.harness import Launcher, wait_until
from trainers.machine import nvml


@pytest.mark.many_gpus
def test_run_on_every_gpu_finishes_and_reports_each_gpu(launcher: Launcher, place: Place) -> None:
    live = launcher.start(device=place.device, nproc_per_node=place.num, max_steps=200, num_epochs=1000)
    status = live.wait_for_end(300.0)
    assert status.state == "finished", live.story()
    assert sorted(live.losses()) == list(range(1, 201))
    devices = live.events("devices")[-1]["devices"]
    assert [(device["rank"], device["kind"], device["index"]) for device in devices] == [
        (rank, place.device, place.index_of(rank)) for rank in range(place.num)
    ]
    assert all(device["name"] and device["memory_total_bytes"] > 2**30 for device in devices)


@pytest.mark.real_gpu("it compares times of the host and of the GPU")
@pytest.mark.parametrize("num_accumulated", [1, 3])
def test_gpus_tell_how_a_step_divides_by_their_own_clock(
    launcher: Launcher, gpu: Place, num_accumulated: int
) -> None:
    live = launcher.start(
        device="cuda",
        nproc_per_node=gpu.num,
        dataset="fashion_mnist",
        model="cnn",
        batch_size=256,
        gradient_accumulation_steps=num_accumulated,
        num_epochs=100_000,
    )

    def measured() -> list[dict[str, Any]]:
        entries = [event["ranks"][0] for event in live.events("ranks")]
        return [entry for entry in entries if entry["step_time_s"] is not None]

    wait_until("three measured steps", lambda: len(measured()) >= 3, 300.0)
    for entry in measured():
        parts = [entry[f"{part}_time_s"] for part in ("data", "forward", "backward", "optimizer")]
        assert sum(parts) == pytest.approx(entry["step_time_s"], rel=0.02), entry
        assert min(parts) >= 0 and parts[1] > 0 and parts[2] > 0, entry
        assert 0 <= entry["wait_time_s"] <= entry["backward_time_s"], entry
        assert 0 <= entry["base_memory_bytes"] < entry["peak_memory_bytes"], entry


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp16"])
def test_a_run_says_which_precision_its_gpu_lacks(launcher: Launcher, gpu: Place, precision: str) -> None:
    """Before Ampere (8.0) neither bf16 nor TF32 is supported; fp16 is the alternative."""
    handle = nvml.gpu_handle(gpu.uuids[0])
    capability = None if handle is None else nvml.compute_capability(handle)
    assert capability is not None
    live = launcher.start(device="cuda", nproc_per_node=1, max_steps=5, precision=precision)
    assert live.wait_for_end(300.0).state == "finished", live.story()
    said = {event["code"]: event["hint"] for event in live.events("warning")}
    expected = {"bf16": "bf16_emulated", "tf32": "tf32_idle"}.get(precision)
    if expected is None or capability >= (8, 0):
        assert not said.keys() & {"bf16_emulated", "tf32_idle"}, said
    else:
        assert expected in said and "fp16" in said[expected], said
