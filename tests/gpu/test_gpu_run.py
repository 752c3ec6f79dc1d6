"""A run on real GPUs: NCCL between them, and their own readings."""

from __future__ import annotations

import pytest
import torch

from tests.harness import Launcher

NUM_GPUS = torch.cuda.device_count()


@pytest.mark.skipif(NUM_GPUS == 0, reason="torch sees no GPU here")
def test_run_on_every_gpu_finishes_and_reports_each_gpu(launcher: Launcher) -> None:
    live = launcher.start(device="cuda", nproc_per_node=NUM_GPUS, max_steps=200, num_epochs=1000)
    status = live.wait_for_end(120.0)
    assert status.state == "finished", live.story()
    assert sorted(live.losses()) == list(range(1, 201))
    devices = live.events("devices")[-1]["devices"]
    assert [(device["rank"], device["kind"], device["index"]) for device in devices] == [
        (rank, "cuda", rank) for rank in range(NUM_GPUS)
    ]
    assert all(device["name"] and device["memory_total_bytes"] > 2**30 for device in devices)


@pytest.mark.skipif(NUM_GPUS == 0, reason="torch sees no GPU here")
def test_more_ranks_than_gpus_fails_in_words(launcher: Launcher) -> None:
    live = launcher.start(device="cuda", nproc_per_node=NUM_GPUS + 1, max_steps=5)
    status = live.wait_for_end(120.0)
    assert status.state == "failed", live.story()
    assert status.error is not None and f"nproc_per_node is {NUM_GPUS + 1}" in status.error
