"""Gradients added up in shared memory by real ranks: what each of them has in the end."""

from __future__ import annotations

import subprocess
import sys

from tests.harness import REPOSITORY

TIMEOUT_S = 120


def test_every_rank_has_the_sum_in_the_order_of_the_ranks() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command += ["-m", "tests.integration.sum_worker"]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:-1] == ["same"] * 3
