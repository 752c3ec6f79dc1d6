"""The fault suite: the most important faults once, and a few damaged files of each kind; or every fault.

    FAULTS_TIMES=10 python -m pytest tests/faults/test_suite.py -n 2

injects every fault ten times; docs/faults.md lists them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.registry import FAULTS
from tests.faults.scenes import load_all
from tests.faults.trial import CannotBePlayedError, play

# The documented time until the state is correct.
LIMIT_S = 15.0
SEED = int(os.environ.get("FAULTS_SEED", "0"))
TIMES = int(os.environ.get("FAULTS_TIMES", "0"))

LIVE = (
    "SIGKILL to supervisor",
    "SIGKILL to rank 0",
    "SIGKILL to all at once",
    "a rank exits 0 early",
    "disk full while events are written",
    "run directory deleted",
    "another user attacks a run",
    "three rude users",
)
DAMAGED = (
    "events file cut or altered",
    "status file cut or altered",
    "configuration cut or altered",
    "checkpoint cut or altered",
    "configuration of a newer version",
    "status of a newer version",
    "a PID used again by another process",
)

load_all()
SELECTED = [(name, SEED) for name in LIVE] + [(name, seed) for name in DAMAGED for seed in (SEED, SEED + 1)]
ALL = [(name, seed) for name in FAULTS for seed in range(SEED, SEED + TIMES)]


@pytest.mark.parametrize(("name", "seed"), ALL or SELECTED)
def test_nothing_is_lost_or_left_and_the_state_is_true_after(name: str, seed: int, tmp_path: Path) -> None:
    try:
        outcome = play(name, FAULTS[name], seed, tmp_path / "trial")
    except CannotBePlayedError as error:
        pytest.skip(str(error))
    assert outcome.lost_events == outcome.bad_checkpoints == outcome.processes_left == 0, outcome
    assert outcome.complaints == [], outcome
    assert (outcome.true_after_s or 0.0) <= LIMIT_S, outcome
