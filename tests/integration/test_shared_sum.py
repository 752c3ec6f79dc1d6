"""Gradients added up in shared memory: the right sums on every rank; a rank that does not come is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.harness import REPOSITORY
from trainers import shared_sum

TIMEOUT_S = 120


def said_by(num_ranks: int, what: str, **environment: str) -> list[str]:
    """Return what the ranks of a small job print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(num_ranks), "-m", "tests.integration.sum_worker", what]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_every_rank_has_the_sum_in_the_order_of_the_ranks(num_ranks: int) -> None:
    assert said_by(num_ranks, "same") == ["same"] * num_ranks


def test_who_goes_is_noticed_at_once() -> None:
    (words,) = said_by(2, "gone")
    found = re.fullmatch(r"connection closed by peer: rank 1 has gone after ([\d.]+) s", words)
    assert found is not None and float(found[1]) < 1.5


def test_who_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    (words,) = said_by(2, "late")
    found = re.fullmatch(r"timed out waiting 2000 ms for the gradients of rank 1 after ([\d.]+) s", words)
    assert found is not None and 1.9 < float(found[1]) < 4.0


def test_it_can_be_left_out() -> None:
    assert said_by(2, "same", **{shared_sum.OFF: "1"}) == ["none", "none"]
