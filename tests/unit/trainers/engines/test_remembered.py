"""Tests of cached controller queries: their frequency, and the answers during an outage."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from tests.harness import wait_until
from trainers.engines.remembered import Remembered
from trainers.engines.slurm.endings import SlurmError


class Controller:
    """A controller that returns the number of queries, and fails while `is_up` is False."""

    def __init__(self) -> None:
        self.is_up = True
        self.num_asked = 0

    def ask(self) -> int:
        self.num_asked += 1
        if not self.is_up:
            raise SlurmError("Unable to contact slurm controller")
        return self.num_asked


@pytest.mark.parametrize("outlives_failures", [False, True])
def test_a_controller_that_is_down_is_left_alone_for_a_while(
    outlives_failures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller()
    answers = Remembered(controller.ask, 0.0, outlives_failures=outlives_failures)
    assert answers.get() == 1
    controller.is_up = False
    for _ in range(3):
        if outlives_failures:
            assert answers.get() == 1
        else:
            with pytest.raises(SlurmError, match="Unable to contact"):
                answers.get()
    assert controller.num_asked == 2
    controller.is_up = True
    monkeypatch.setattr(Remembered, "retry_s", 0.0)

    def answers_again() -> bool:
        with contextlib.suppress(SlurmError):
            return answers.get() > 1
        return False

    wait_until("an answer", answers_again, 10.0)
    assert answers.silent_since_unix_s is None


def test_while_one_thread_asks_others_have_the_last_answer_but_not_one_from_before_a_change() -> None:
    asked, may_answer = threading.Event(), threading.Event()
    numbers = itertools.count(1)

    def ask() -> int:
        number = next(numbers)
        if number > 1:
            asked.set()
            assert may_answer.wait(60)
        return number

    answers = Remembered(ask, 0.0)
    assert answers.get() == 1
    slow = threading.Thread(target=answers.get)
    slow.start()
    assert asked.wait(60)
    assert answers.get() == 1, "nobody waits for the one that asks"
    newer: list[int] = []
    asking = threading.Thread(target=lambda: newer.append(answers.get(afresh=True)))
    asking.start()
    answers.forget()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(answers.get()))
    waiting.start()
    may_answer.set()
    for thread in (slow, asking, waiting):
        thread.join(60)
    # The slow query started before the change, so the query is repeated.
    assert found[0] > 2 and newer[0] > 1
