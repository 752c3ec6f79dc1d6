"""Tests of recorded steps: overlap with computation, and clocks of several machines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.fakes import world_of
from trainers.recording import profiled, whole
from trainers.recording.profiled import Ping, Skew


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
    found = profiled.step_numbers(step([(4.0, 5.0), (4.5, 7.0), (6.0, 8.0)]), is_blocking=False)
    assert found["all_reduce_s"] == 4.0, "from 4 to 8 without a break"
    assert found["hidden_s"] == 2.0, "backward computes until 6, when the last bucket is ready"
    assert (found["data_s"], found["forward_s"], found["backward_s"]) == (1.0, 2.0, 5.0)
    assert (found["optimizer_s"], found["other_s"], found["both_s"]) == (1.0, 1.0, None)
    assert found["step_s"] == 10.0 and found["waited_s"] is None


def test_what_the_computing_thread_does_itself_is_never_hidden() -> None:
    rounds = [[4.0, 4.2, 4.7, 5.0, 100.0]]
    found = profiled.step_numbers(step([(4.0, 5.0), (6.0, 8.0)], rounds), is_blocking=True)
    assert found["hidden_s"] == 0.0 and found["all_reduce_s"] == 3.0
    assert found["waited_s"] == pytest.approx(2 * 0.5), "of each bucket's round"


def test_the_whole_is_a_mean_over_steps_and_a_share_over_ranks() -> None:
    ranks = [
        {"rank": 0, "steps": [step([(4.0, 6.0), (6.0, 7.0)]), step([(4.0, 6.0), (6.0, 7.0)])]},
        {"rank": 1, "steps": [step([(3.0, 4.0), (5.0, 6.0)]), step([(3.0, 4.0), (5.0, 6.0)])]},
    ]
    found = profiled.recording_numbers(ranks, is_blocking=False)
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


@pytest.mark.parametrize("ahead_ns", [-3_000_000, 0, 7_500_000])
@pytest.mark.parametrize("way_there_ns", [10, 50, 190])
def test_the_true_skew_is_never_further_away_than_the_error(ahead_ns: int, way_there_ns: int) -> None:
    ping = Ping(sent_ns=1_000, answered_ns=1_000 + way_there_ns + ahead_ns, returned_ns=1_200)
    slower = Ping(sent_ns=0, answered_ns=9_000, returned_ns=1_000)
    found = profiled.estimate_skew([slower, ping])
    assert abs(found.ahead_ns - ahead_ns) <= found.error_ns == 100


def test_another_machines_moments_come_onto_the_clock_of_the_first() -> None:
    def notes(rank: int, began: int) -> dict[str, object]:
        parts = [["data", began, began + 100], ["forward", began + 100, began + 1000]]
        one = {"step": 4, "began": began, "ended": began + 1000, "parts": parts, "collectives": []}
        steps = [{**one, "all_reduces": [{"bucket": 0, "began": began, "ended": began + 900, "rounds": []}]}]
        bucket = [["weight", 40], ["bias", 8]]
        place = {"rank": rank, "node": rank, "host": "", "problem": None}
        return {**place, "steps": steps, "buckets": [bucket], "algorithms": []}

    class Ddp:
        name, all_reduce = "ddp", "gloo"

    world = world_of(2)
    skews = {0: Skew(), 1: Skew(ahead_ns=5_000_000, error_ns=300)}
    both = [notes(0, 2_000), notes(1, 5_002_500)]
    found = whole.combine(both, skews, Ddp(), world, ended_early=None)  # type: ignore[arg-type]
    assert [rank["steps"][0]["began_s"] for rank in found["ranks"]] == [0.0, 5e-7]
    clock = {"method": "pings", "error_s": 3e-7, "num_checked": 1, "worst_contradiction_s": 0.0}
    assert found["clock"] == clock
    parameters = [{"name": "weight", "bytes": 40}, {"name": "bias", "bytes": 8}]
    assert found["buckets"] == [{"bytes": 48, "parameters": parameters}]
    with pytest.raises(ValueError, match=r"no step was recorded\. The run was paused\."):
        whole.combine([{**notes(0, 0), "steps": []}], skews, Ddp(), world, ended_early="The run was paused.")  # type: ignore[arg-type]
