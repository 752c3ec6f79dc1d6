"""The short fault suite: the most important faults once, and a few damaged files of each kind.

    python -m tests.faults

runs all faults many times; docs/faults.md explains the table.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import table
from tests.faults.registry import FAULTS
from tests.faults.scenes import load_all
from tests.faults.trial import CannotBePlayedError, play

SEED = int(os.environ.get("FAULTS_SEED", "0"))

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
TIMES_DAMAGED = 2

load_all()


def hold(name: str, seed: int, folder: Path) -> None:
    """Run a trial of a fault and fail with all its deviations."""
    fault = FAULTS[name]
    try:
        outcome = play(name, fault.scene, seed, folder)
    except CannotBePlayedError as error:
        pytest.skip(str(error))
    assert table.is_good(outcome, fault.limit_s), f"seed {seed}: {outcome}"


@pytest.mark.parametrize("name", LIVE)
def test_nothing_is_lost_or_left_and_the_state_is_true_after(name: str, tmp_path: Path) -> None:
    hold(name, SEED, tmp_path / "trial")


@pytest.mark.parametrize("name", DAMAGED)
def test_page_opens_what_can_be_opened_and_says_what_cannot(name: str, tmp_path: Path) -> None:
    for seed in range(SEED, SEED + TIMES_DAMAGED):
        hold(name, seed, tmp_path / f"trial-{seed}")


def test_every_fault_has_a_name_of_its_own_and_is_played_often_enough() -> None:
    assert sum(fault.times for fault in FAULTS.values()) >= 500
    assert {*LIVE, *DAMAGED} <= FAULTS.keys()
