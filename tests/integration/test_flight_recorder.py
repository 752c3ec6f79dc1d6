"""Collective counters of torch's flight recorder on ranks with unequal numbers of sends, as in a pipeline."""

from __future__ import annotations

import subprocess

from tests.harness import REPOSITORY, torchrun_of

TIMEOUT_S = 300


def test_sends_and_receives_of_gloo_do_not_shift_the_numbers_of_collectives() -> None:
    """A middle rank sends twice as often as the first; still no rank appears to have missed a collective."""
    command = torchrun_of(4, "tests.integration.pipeline_worker")
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()
    assert len(said) == 4 and len(set(said)) == 1, said
    assert "broadcast" in said[0], said
