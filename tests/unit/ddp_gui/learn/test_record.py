"""Tests of progress: validation, and the merging of two pages' progress."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_gui.learn import progress

pytestmark = pytest.mark.unit


def made(**values: Any) -> progress.Progress:
    return progress.parse_record(progress.empty_record() | values)


LOCKED = {"prediction": 1, "isLocked": True}


def test_the_newer_wins_but_no_started_run_is_lost() -> None:
    known = made(**LOCKED, isStarted=True, runs=["run-1", "run-2"])
    told = made(prediction=0, runs=["run-9", None])
    found = progress.merge_records(known, told)
    assert (found["prediction"], found["isLocked"], found["isStarted"]) == (1, True, True)
    assert found["runs"] == ["run-9", "run-2"]
    assert progress.merge_records(made(prediction=0), made(prediction=2))["prediction"] == 2


def test_attempts_and_answers_of_both_are_kept() -> None:
    one, other = ({"choice": "seed 1", "runId": f"run-{number}"} for number in range(2))
    known = made(attempts={"1": [one]}, answers={"0": 1})
    told = made(attempts={"1": [other], "2": [other]}, answers={"0": 2, "1": 0}, isDone=True)
    found = progress.merge_records(known, told)
    assert found["attempts"] == {"1": [one, other], "2": [other]}
    assert found["answers"] == {"0": 1, "1": 0}, "the first answer counts"
    assert found["isDone"]
    assert progress.merge_records(found, told)["attempts"] == found["attempts"], "nothing is there twice"


def test_what_was_begun_anew_is_not_taken_back_by_a_page_that_does_not_know() -> None:
    anew, stale = made(round=3), made(round=2, **LOCKED, runs=["run-1"])
    assert progress.merge_records(anew, stale) == anew
    assert progress.merge_records(stale, anew) == anew


@pytest.mark.parametrize(
    "values",
    [
        {"round": -1}, {"round": 1.5}, {"round": True}, {"poll": "../../x"}, {"poll": 3}, {"prediction": "a"},
        {"prediction": 6}, {"prediction": [1.0] * 8}, {"prediction": [float("nan")] * 9}, {"isLocked": 1},
        {"isLocked": True}, {"runs": ["run"] * 7}, {"runs": ["../run"]}, {"runs": "run"},
        {"attempts": {"x": []}},
        {"attempts": {"0": [{"choice": "a"}]}}, {"attempts": {"0": [{"choice": "a" * 201, "runId": "r"}]}},
        {"attempts": {"0": [{"choice": "a", "runId": "r"}] * 51}}, {"answers": {"0": 7}},
        {"answers": {"99": 0}},
        {"answers": []}, {"isDone": None},
    ],
)  # fmt: skip
def test_what_is_no_progress_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="progress: "):
        made(**values)
