"""Tests of poll rules: who may answer and when, one answer each, and the published results."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from ddp_gui.learn import polls
from ddp_gui.learn.polls import ACTIONS, MAX_ANSWERS, Poll

pytestmark = pytest.mark.unit

CHOICE = {"kind": "choice", "question": ["Which?"], "choices": [["a"], ["b"], ["c"]], "right": 1}
CURVE = {"kind": "curve", "question": ["How?"], "curve": "loss", "low": 0.0, "high": 4.0}


def make(question: dict[str, Any] = CHOICE) -> Poll:
    return Poll(
        poll_id="k3m9x2ab",
        lesson="batch",
        title="Batch",
        opened_by="eve",
        opened_unix_s=1.0,
        question=question,
        num_runs=2,
    )


@pytest.mark.parametrize("state", polls.STATES)
@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_is_for_its_states(action: str, state: polls.State) -> None:
    poll = make()
    poll.state = state
    states, following = ACTIONS[action]
    if state in states:
        poll.act(action)
        assert poll.state == (following or state)
    else:
        with pytest.raises(
            ValueError, match=f"the poll is {state}: the action {action} needs a poll that is"
        ):
            poll.act(action)


def test_one_answer_a_person_and_a_prediction_cannot_be_changed() -> None:
    poll = make()
    poll.answer("ann", 2, 10.0)
    poll.answer("ann", 2, 20.0)  # a retry, after the response to the first was lost
    assert poll.answers["ann"].answered_unix_s == 10.0
    with pytest.raises(ValueError, match="you have already answered"):
        poll.answer("ann", 1, 21.0)
    poll.act("close")
    poll.answer("ann", 2, 22.0)
    for person in ("ann", "bob"):
        with pytest.raises(ValueError, match="accepts no more predictions"):
            poll.answer(person, 0, 23.0)
    assert poll.results() == {"counts": [0, 0, 1]}


def test_a_poll_takes_so_many_answers_and_no_more() -> None:
    poll = make()
    for number in range(MAX_ANSWERS):
        poll.answer(str(number), 0, 1.0)
    with pytest.raises(ValueError, match="which is the maximum"):
        poll.answer("one more", 0, 1.0)


@pytest.mark.parametrize("value", [-1, 3, True, None, "1", 1.0, [1], {}])
def test_what_is_no_choice_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="allowed: a whole number from 0 to 2"):
        make().answer("ann", value, 1.0)


def test_curves_are_told_in_an_order_that_names_nobody() -> None:
    poll = make(CURVE)
    poll.answer("ann", [3.0] * 9, 1.0)
    poll.answer("bob", [1.23456789] * 9, 2.0)
    assert poll.results() == {"curves": [[1.23457] * 9, [3.0] * 9]}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "burnt"},
        {"answers": {"ann": {"value": [9.0] * 9, "answered_unix_s": 1.0}}},
        {"answers": 1},
        {"x": 1},
    ],
)
def test_a_file_that_is_no_poll_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says another thing
        polls.poll_from_json(asdict(make(CURVE)) | changes)
