"""Tests of replica fingerprints: whether replicas are identical, also across a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_gui.events import run_view
from ddp_gui.events import series as series_module
from ddp_gui.events.series import Series
from tests.unit.ddp_gui.events.test_series import step

SAME, OTHER = "00aa11bb22cc33dd", "ffee44dd55cc66bb"


def compared(number: int, seq: int, *, distance: float = 0.0) -> dict[str, Any]:
    hashes = [SAME, SAME if distance == 0.0 else OTHER]
    return {
        "seq": seq,
        "time_unix_s": 1000.0 + seq,
        "kind": "fingerprints",
        "step": number,
        "hashes": hashes,
        "distances": [0.0, distance],
    }


def start(seq: int) -> dict[str, Any]:
    return {"seq": seq, "time_unix_s": 1000.0 + seq, "kind": "state", "state": "starting", "reason": ""}


def shown(*fed: dict[str, Any]) -> dict[str, Any]:
    series = Series()
    series.feed(fed)
    found: dict[str, Any] = json.loads(run_view.encode_message({"shown": series.fingerprints.shown()}))[
        "shown"
    ]
    return found


def test_replicas_differ_since_the_first_of_the_newest_comparisons_that_say_so() -> None:
    found = shown(
        compared(1, 0), compared(2, 1, distance=0.1), compared(3, 2), compared(4, 3, distance=0.2),
        compared(5, 4, distance=0.3),
    )  # fmt: skip
    assert not found["is_identical"]
    assert (found["differ_since"], found["identical_until"]) == (4, 3)
    assert found["curve"] == {"steps": [1, 2, 3, 4, 5], "distances": [[0.0] * 5, [0.0, 0.1, 0.0, 0.2, 0.3]]}


def test_a_resume_forgets_what_came_after_its_checkpoint_but_not_what_it_says_itself() -> None:
    """The first comparison after a resume may precede the first step in the file."""
    first = [start(0), *(step(number, number) for number in range(1, 8))]
    before = [compared(4, 8), compared(7, 9, distance=0.5)]
    again = [start(10), compared(5, 11), step(5, 12), step(6, 13)]
    found = shown(*first, *before, *again)
    assert [item["step"] for item in found["newest"]] == [4, 5]
    assert found["is_identical"]
    assert [item["step"] for item in shown(*first, *before, start(10), step(5, 11))["newest"]] == [4]


def test_a_very_long_run_keeps_its_newest_and_some_of_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "MAX_KEPT", 100)
    subject = series_module.Fingerprints()
    for number in range(1, 1001):
        subject.add(compared(number, number, distance=0.1))
    found = subject.shown()
    assert found is not None
    steps = found["curve"]["steps"]
    assert steps[0] == 1 and steps[-24:] == list(range(977, 1001)) and len(steps) <= 200
    assert found["differ_since"] == 1
