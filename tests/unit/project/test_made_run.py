"""A made-up run is written as a real one is: the benchmarks would measure something else otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import made_run
from benchmarks.dashboard.latency import latencies_ms
from benchmarks.machine import percentile
from benchmarks.made_writer import live_run
from tests.harness import wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory

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
    assert run.read_status().state == "finished"
    assert run.read_config().max_steps == 400


def test_a_latency_is_that_of_the_first_look_that_had_the_event(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    file = events.EventFile(run.events)
    fields = made_run.step_fields(1, 1.0, 1.0)
    file.append([(100.0, "step", fields), (100.1, "step", fields), (100.2, "step", fields)])
    file.close()
    # A cursor is the number of the next event: 1 has seen event 0, 2 has seen 0 and 1, nobody saw event 2.
    seen = [(1, 100_050.0), (2, 100_400.0)]
    delays = latencies_ms(run, seen, since_unix_s=100.0, until_unix_s=101.0)
    assert delays == pytest.approx([50.0, 300.0, 800.0])


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [50.0, 95.0, 100.0]
    assert percentile([7.0], 0.95) == 7.0


def test_a_live_run_is_owned_and_grows_until_it_is_told_to_end(tmp_path: Path) -> None:
    with live_run(tmp_path / "live", 50) as run:
        assert run.read_status().state == "running"
        assert run.read_status().pid != os.getpid()
        wait_until("steps beyond the history", lambda: _newest_step(run) > 52, 60)
    assert run.read_status().state == "stopped"
    assert not run.is_locked()


def _newest_step(run: RunDirectory) -> int:
    return max(event["step"] for event in events.read_all(run.events) if event["kind"] == "step")
