"""Gradients summed in shared memory by real ranks: the result on each rank."""

from __future__ import annotations

import subprocess

from tests.harness import REPOSITORY, torchrun_of

TIMEOUT_S = 300


def test_every_rank_has_the_sum_in_the_order_of_the_ranks() -> None:
    command = torchrun_of(3, "tests.integration.sum_worker")
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == ["same"] * 3
