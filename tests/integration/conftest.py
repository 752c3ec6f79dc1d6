"""Runs that several integration tests look at; each is done once a session."""

from __future__ import annotations

import pytest

from tests.harness import Launcher, LiveRun

REFERENCE_STEPS = 600
REFERENCE = {
    "num_epochs": 1000,
    "max_steps": REFERENCE_STEPS,
    "eval_every_steps": 100,
    "checkpoint_every_steps": 250,
}


@pytest.fixture(scope="session")
def finished_run(shared_launcher: Launcher) -> LiveRun:
    """Return a seeded 2-rank run of 600 steps that nobody disturbed."""
    live = shared_launcher.start(**REFERENCE)
    live.wait_for_end()
    return live
