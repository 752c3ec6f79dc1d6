"""Tests of the statistics of a recording:

overlap of communication and computation, and inconsistent clocks.
"""

from __future__ import annotations

from typing import Any

import pytest

from trainers.recording import profiled


def step(reduces: list[tuple[float, float]], rounds: list[list[float]] | None = None) -> dict[str, Any]:
    """Return a step of ten seconds: one of data, two of forward, five of backward, one of the optimizer."""
    return {
        "began_s": 0.0,
        "ended_s": 10.0,
        "parts": [
            ["data", 0.0, 1.0],
            ["forward", 1.0, 3.0],
            ["backward", 3.0, 8.0],
            ["optimizer", 8.0, 9.0],
            ["other", 9.0, 10.0],
        ],
        "all_reduces": [
            {"bucket": number, "began_s": began, "ended_s": ended, "rounds": rounds or []}
            for number, (began, ended) in enumerate(reduces)
        ],
    }


def test_the_time_of_spans_that_overlap_is_counted_once() -> None:
    spans = [(4.0, 6.0), (0.0, 2.0), (1.0, 3.0), (5.0, 5.5)]
    assert profiled.union(spans) == [(0.0, 3.0), (4.0, 6.0)]
    assert profiled.length(spans) == 5.0
    assert profiled.overlap(spans, [(2.5, 4.5), (2.0, 2.6), (9.0, 9.5)]) == 1.5
    assert profiled.length([]) == profiled.overlap([], spans) == 0.0


def test_an_all_reduce_is_hidden_until_the_last_bucket_is_ready() -> None:
    found = profiled.numbers_of_step(step([(4.0, 5.0), (4.5, 7.0), (6.0, 8.0)]), is_blocking=False)
    assert found["all_reduce_s"] == 4.0, "from 4 to 8 without a break"
    assert found["hidden_s"] == 2.0, "backward computes until 6, when the last bucket is ready"
    assert (found["data_s"], found["forward_s"], found["backward_s"]) == (1.0, 2.0, 5.0)
    assert (found["optimizer_s"], found["other_s"], found["both_s"]) == (1.0, 1.0, None)
    assert found["step_s"] == 10.0 and found["waited_s"] is None


def test_what_the_computing_thread_does_itself_is_never_hidden() -> None:
    rounds = [[4.0, 4.2, 4.7, 5.0, 100.0]]
    found = profiled.numbers_of_step(step([(4.0, 5.0), (6.0, 8.0)], rounds), is_blocking=True)
    assert found["hidden_s"] == 0.0 and found["all_reduce_s"] == 3.0
    assert found["waited_s"] == pytest.approx(2 * 0.5), "of each bucket's round"


def test_the_whole_is_a_mean_over_steps_and_a_share_over_ranks() -> None:
    ranks = [
        {"rank": 0, "steps": [step([(4.0, 6.0), (6.0, 7.0)]), step([(4.0, 6.0), (6.0, 7.0)])]},
        {"rank": 1, "steps": [step([(3.0, 4.0), (5.0, 6.0)]), step([(3.0, 4.0), (5.0, 6.0)])]},
    ]
    found = profiled.numbers_of(ranks, is_blocking=False)
    assert [each["all_reduce_s"] for each in found["ranks"]] == [3.0, 2.0]
    assert [each["hidden_s"] for each in found["ranks"]] == [2.0, 1.0]
    assert found["overlap"] == 0.6


def test_an_all_reduce_that_ends_before_it_begins_elsewhere_contradicts_the_clocks() -> None:
    agreeing = [{"steps": [step([(4.0, 6.0)])]}, {"steps": [step([(5.5, 6.0)])]}]
    assert profiled.worst_contradiction_s(agreeing) == (1, 0.0)
    skewed = [{"steps": [step([(4.0, 6.0)])]}, {"steps": [step([(6.25, 8.0)])]}]
    assert profiled.worst_contradiction_s(skewed) == (1, 0.25)
    not_alike = [{"steps": [step([(4.0, 6.0)])]}, {"steps": [step([])]}]
    assert profiled.worst_contradiction_s(not_alike) == (0, 0.0)
