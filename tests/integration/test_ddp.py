"""DDP's behaviour around a step: graphs split at buckets, running statistics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.answers import answers_of

NUM_BUCKETS = 4


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of each rank."""
    found: list[dict[str, Any]] = answers_of(request.param, "ddp_worker", tmp_path_factory.mktemp("ddp"))
    return found


def test_a_compiled_network_is_cut_by_the_buckets_of_ddp(answers: list[dict[str, Any]]) -> None:
    """One rank does not communicate, so its graph is not split."""
    for rank in answers:
        seen = rank["split"]
        assert seen["problem"] is None
        assert seen["num_graphs"] == (1 if len(answers) == 1 else NUM_BUCKETS)
        assert seen["num_graphs_after_steps"] == seen["num_graphs"], (
            "the trial's graphs are those of training"
        )
        assert seen["is_untouched"]
        assert seen["losses"] == pytest.approx(seen["plain"], rel=1e-6)
    assert len({rank["split"]["state"] for rank in answers}) == 1, "the ranks train alike"


def test_cut_graphs_take_batches_of_another_size(answers: list[dict[str, Any]]) -> None:
    """The smaller last batch of an epoch: each partition is compiled once more, with equal results."""
    for rank in answers:
        seen = rank["odd_batch"]
        num_pieces = 1 if len(answers) == 1 else NUM_BUCKETS
        assert seen["problem"] is None
        assert seen["num_graphs_at_first"] == num_pieces
        assert seen["num_graphs"] == 2 * num_pieces
        assert seen["losses"] == pytest.approx(seen["plain"], rel=1e-6)
        assert seen["worst_weight"] < 1e-6
    assert len({rank["odd_batch"]["state"] for rank in answers}) == 1, "the ranks train alike"


def test_a_trial_that_fails_on_one_rank_leaves_a_wrapped_network_that_trains(
    answers: list[dict[str, Any]],
) -> None:
    *others, failed = (rank["failing"] for rank in answers)
    assert "no compiler here" in failed["problem"]
    assert all(other["problem"] == "another rank could not compile it" for other in others)
    for seen in (*others, failed):
        assert seen["is_untouched"] and seen["losses"] == seen["plain"]
        assert seen["state"] == failed["state"]


def test_what_cannot_be_cut_is_compiled_whole(answers: list[dict[str, Any]]) -> None:
    for rank in answers:
        seen = rank["failing_when_cut"]
        assert seen["problem"] is None and seen["is_untouched"]
        assert seen["nodes_in_newest"] > 2 * NUM_BUCKETS, "one graph of all layers"
        assert seen["state"] == answers[0]["failing_when_cut"]["state"]


def test_running_statistics_wait_for_an_evaluation_and_change_nothing(answers: list[dict[str, Any]]) -> None:
    for rank in answers:
        at_need, each_step = rank["shared_at_need"], dict(rank["shared_each_step"])
        expected = (None, None) if len(answers) == 1 else (False, True)
        assert (at_need["broadcasts"], each_step["broadcasts"]) == expected
        each_step["broadcasts"] = at_need["broadcasts"]
        assert at_need == each_step, "losses, evaluations and what rank 0 saves have the same bits"
    assert len({json.dumps(rank["shared_at_need"]["evaluations"]) for rank in answers}) == 1


def test_one_rank_trains_the_same_bits_without_ddp(answers: list[dict[str, Any]]) -> None:
    if len(answers) == 1:
        plain, wrapped = answers[0]["alone"]
        assert plain == wrapped, "losses, weights, statistics, and the names that a checkpoint has"
    else:
        assert all(rank["alone"] == [] for rank in answers)
