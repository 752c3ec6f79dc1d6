"""Polls: who may answer, one answer each, the results, and the address of the page for phones."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.learn import poll_routes, polls
from ddp_gui.learn.polls import ACTIONS, MAX_ANSWERS, Poll
from ddp_gui.options import Options

CHOICE = {"kind": "choice", "question": ["Which?"], "choices": [["a"], ["b"], ["c"]], "right": 1}
FAR = {"value": [9.0] * 9, "answered_unix_s": 1.0}
CURVE = {"kind": "curve", "question": ["How?"], "curve": "loss", "low": 0.0, "high": 4.0}


def make(question: dict[str, Any] = CHOICE) -> Poll:
    about = {"poll_id": "k3m9x2ab", "lesson": "batch", "title": "Batch", "opened_by": "eve", "num_runs": 2}
    return Poll(opened_unix_s=1.0, question=question, **about)


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
        with pytest.raises(ValueError, match=f"the poll is {state}: the action {action} needs a poll"):
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


@pytest.mark.parametrize("changes", [{"state": "burnt"}, {"answers": {"ann": FAR}}, {"answers": 1}, {"x": 1}])
def test_a_file_that_is_no_poll_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says another thing
        polls.poll_from_json(asdict(make(CURVE)) | changes)


ADDRESS = "http://192.168.1.20:7860/poll?id=k3m9x2ab"
# Of the rows of the QR code that zxing-cpp 3.1.1 decodes to ADDRESS.
KNOWN_SHA256 = "25b3440dff9efffdb69933a927182a508a73cdb987f611b6e122b440c2da50d6"


def options(**values: Any) -> Options:
    known = {"host": "127.0.0.1", "port": 7860, "runs_dir": Path("runs"), "open_browser": False}
    return Options(**(known | values))


def url(made: Options, scheme: str = "http", host: str = "127.0.0.1:7860") -> str | None:
    return poll_routes.address_of_page(made, scheme, host, 7860).url


def test_it_is_the_one_by_which_the_teacher_is_here_or_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_routes, "own_address", lambda: "192.168.1.20")
    assert url(options(host="0.0.0.0"), host="192.168.1.7:7860") == "http://192.168.1.7:7860/"
    assert url(options(host="::"), host="[fd00::5]:7860") == "http://[fd00::5]:7860/"
    assert url(options(host="0.0.0.0")) == "http://192.168.1.20:7860/"
    assert url(options(host="10.0.0.7")) == "http://10.0.0.7:7860/"
    monkeypatch.setattr(poll_routes, "own_address", lambda: "fd00::5")
    assert url(options(host="::"), host="[::1]:7860") == "http://[fd00::5]:7860/"
    monkeypatch.setattr(poll_routes, "own_address", lambda: None)
    found = poll_routes.address_of_page(options(host="0.0.0.0"), "http", "localhost", 7860)
    assert found.url is None and "no network address" in found.problem


def test_on_this_machine_alone_it_says_how_phones_could_reach_it() -> None:
    alone = poll_routes.address_of_page(options(has_anonymous_polls=True), "http", "127.0.0.1:7860", 7860)
    assert alone.url is None and "--host 0.0.0.0 --polls" in alone.problem
    school = poll_routes.address_of_page(
        options(auth_file=Path("accounts.json")), "http", "localhost:7860", 7860
    )
    assert "--host 0.0.0.0 --auth-file accounts.json" in school.problem and "--insecure" not in school.problem


def test_a_qr_code_is_the_known_one() -> None:
    drawn = "\n".join(row.replace("1", "#").replace("0", ".") for row in poll_routes._rows(ADDRESS))
    assert hashlib.sha256(drawn.encode()).hexdigest() == KNOWN_SHA256, drawn
    assert poll_routes._rows(None) == []
    assert len(poll_routes._rows("a" * poll_routes.MAX_QR_CHARACTERS)) == 57
    assert poll_routes._rows("a" * (poll_routes.MAX_QR_CHARACTERS + 1)) == []
