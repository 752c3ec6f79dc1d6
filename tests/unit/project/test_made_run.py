"""A synthetic run has the format of a real one; otherwise the benchmarks would measure something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import made_run
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
