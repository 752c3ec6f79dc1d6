"""Tests of the event check: a damaged line is reported and does not affect other events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events.run_view import RunView
from tests.harness import create_run
from tests.unit.ddp_gui.events.test_digest import evaluation, steps, write_events
from trainers.contract import events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory

STEP = {
    "seq": 3, "time_unix_s": 1.5, "kind": "step", "step": 1, "epoch": 0, "loss": None, "lr": 0.1,
    "grad_norm": None, "samples_per_s": 1.0, "step_time_s": 1.0, "data_time_s": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"seq": -1}, {"seq": "3"}, {"seq": True}, {"time_unix_s": None}, {"time_unix_s": float("inf")},
        {"kind": 7}, {"step": 1.5}, {"step": 2**80}, {"loss": "low"}, {"loss": float("nan")},
    ],
)  # fmt: skip
def test_event_with_a_value_nobody_can_use_is_not_whole(change: dict[str, Any]) -> None:
    assert events.is_complete_event(STEP)
    assert not events.is_complete_event(STEP | change)


def test_event_of_a_kind_still_to_come_is_whole() -> None:
    assert events.is_complete_event({"seq": 0, "time_unix_s": 1, "kind": "dance"})


@pytest.fixture
def damaged(tmp_path: Path) -> RunDirectory:
    """Return a run of 30 steps and an evaluation; line 20 is garbage, line 25 lacks its loss."""
    run = create_run(tmp_path)
    write_events(run, [*steps(1, 30), evaluation(30, 0.5, 31.0)])
    lines = run.events.read_bytes().splitlines(keepends=True)
    lines[19] = b"\x00\x00{garbage\n"
    lines[24] = lines[24].replace(b'"loss":', b'"lofs":')
    run.events.write_bytes(b"".join(lines))
    return run


def test_the_page_shows_the_rest_and_says_what_is_missing(damaged: RunDirectory) -> None:
    view = RunView(damaged, None)
    assert view.catch_up()
    shown = view.series.steps.x("step").tolist()
    assert shown == [step for step in range(1, 31) if step not in (20, 25)]
    (insight,) = [item for item in view.insights() if item.code == "events_damaged"]
    assert insight.message.startswith("2 events cannot be read")


def test_numbering_goes_on_after_the_last_line_that_can_be_read(damaged: RunDirectory) -> None:
    with damaged.events.open("ab") as file:
        file.write(b"{garbage}\n" * 3)
    assert EventFile(damaged.events).next_seq == 31
