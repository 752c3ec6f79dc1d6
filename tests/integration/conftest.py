"""Runs that several integration tests look at, each done once a session; the engine of a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import Launcher, LiveRun
from trainers.engines import registry
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine

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


@pytest.fixture
def engine(slurm: SlurmCluster) -> Iterator[SlurmEngine]:
    """Return the engine of a real cluster, known by its name while a test runs; all is idle afterwards."""
    before = dict(registry._ENGINES)
    made = SlurmEngine(Slurm(slurm.environment))
    registry.register(made)
    yield made
    registry._ENGINES.clear()
    registry._ENGINES.update(before)
    slurm.wait_until_idle()
