"""A made-up run is written as a real one is: the benchmarks would measure something else otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.machine import percentile
from tests import made_run
from tests.harness import wait_until
from tests.made_writer import live_run
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

pytestmark = pytest.mark.unit


def test_every_event_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "made")
    made_run.make_finished(run, 400)
    found = list(events.read_all(run.events))
    assert [event["seq"] for event in found] == list(range(len(found)))
    for event in found:
        assert set(event) == {*events.COMMON_FIELDS, *events.FIELDS[event["kind"]]}
    assert {"plan", "step", "eval", "devices", "ranks", "checkpoint"} <= {event["kind"] for event in found}
    assert [event["step"] for event in found if event["kind"] == "step"] == list(range(1, 401))
    devices = next(event["devices"] for event in found if event["kind"] == "devices")
    ranks = next(event["ranks"] for event in found if event["kind"] == "ranks")
    assert all(set(device) == set(events.DEVICE_FIELDS) for device in devices)
    assert all(set(rank) == set(events.RANK_FIELDS) for rank in ranks)
    assert liveness.read_status(run).state == "finished"
    assert run.read_config().max_steps == 400


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [50.0, 95.0, 100.0]
    assert percentile([7.0], 0.95) == 7.0


def test_a_live_run_is_owned_and_grows_until_it_is_told_to_end(tmp_path: Path) -> None:
    with live_run(tmp_path / "live", 50) as run:
        assert liveness.read_status(run).state == "running"
        assert liveness.read_status(run).pid != os.getpid()
        wait_until("steps beyond the history", lambda: _newest_step(run) > 52, 60)
    assert liveness.read_status(run).state == "stopped"
    assert not run.is_locked()


def _newest_step(run: RunDirectory) -> int:
    return max(event["step"] for event in events.read_all(run.events) if event["kind"] == "step")
