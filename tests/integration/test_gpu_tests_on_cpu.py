"""Run GPU tests on CPU ranks: the functions they call exist and return what they check."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.harness import REPOSITORY

# One with a supervisor, one that inspects the ranks, one with a manual start. The other tests take longer.
CHEAP = (
    "test_several_ranks_one_card.py::test_ranks_that_share_a_gpu_are_told_apart_and_obey[ddp]",
    "test_several_ranks_one_card.py::test_weights_are_the_same_on_both_ranks_after_many_steps[ddp]",
    "test_failures.py::test_out_of_memory_is_told_with_what_helps",
    "test_two_gpus.py::test_a_trace_tells_products_computed_while_gradients_travel",
)


def test_the_cheap_ones_pass() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/gpu/{name}" for name in CHEAP)],
        cwd=REPOSITORY,
        env=os.environ | {"GPU_TESTS_ON_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    assert f"{len(CHEAP)} passed" in ended.stdout, ended.stdout[-5000:]
