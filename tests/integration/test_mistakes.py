"""Mistakes on real ranks: their effects, the detection of hangs, and the comparison of replicas."""

from __future__ import annotations

import json
import math
from itertools import chain
from typing import Any

import pytest

from tests.harness import Launcher, LiveRun
from tests.integration.answers import answers_of

# One epoch of digits is 23 global batches.
HANGS = {
    "rank0_validates_alone": {"num_epochs": 1},
    "rank0_saves_alone": {"num_epochs": 1, "checkpoint_every_steps": 5},
    "uneven_batches": {"num_epochs": 1},
}
FOUND_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of both ranks, with and without mistakes."""
    found: list[dict[str, Any]] = answers_of(2, "mistakes_worker", tmp_path_factory.mktemp("mistakes"))
    return found


@pytest.fixture(scope="module")
def hanging(shared_launcher: Launcher) -> dict[str, LiveRun]:
    """Start all hanging runs together, so that their timeouts overlap."""
    return {name: shared_launcher.start(mistake=name, **values) for name, values in HANGS.items()}


def test_gradients_that_are_not_averaged_are_each_ranks_own(ranks: list[dict[str, Any]]) -> None:
    own = [rank["gradients"]["no_gradient_averaging"] for rank in ranks]
    averaged = [(first + second) / 2 for first, second in zip(*own, strict=True)]
    assert own[0] != own[1]
    for rank in ranks:
        assert rank["gradients"]["none"] == pytest.approx(averaged, rel=1e-5)


def test_the_sum_of_gradients_is_the_mean_times_the_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        mean, total = (rank["gradients"][name] for name in ("none", "sum_instead_of_mean"))
        assert total == [2 * value for value in mean]


def test_evaluation_on_two_ranks_counts_exactly_what_one_rank_counts(ranks: list[dict[str, Any]]) -> None:
    """Five samples: three for rank 0, two for rank 1."""
    for rank in ranks:
        alone, together = rank["alone"], rank["evaluations"]["none"]
        assert sum(map(sum, alone["confusion"])) == 5 and alone["metrics"]["macro_f1"] >= 0
        assert together["confusion"] == alone["confusion"] and together["metrics"] == alone["metrics"]
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-6)


def test_validation_of_one_rank_counts_its_share_only(ranks: list[dict[str, Any]]) -> None:
    counts = [sum(map(sum, rank["evaluations"]["rank0_metrics"]["confusion"])) for rank in ranks]
    assert counts == [3, 3], "rank 0 has three of the five samples, and tells rank 1"
    assert len({json.dumps(rank["evaluations"]["rank0_metrics"]) for rank in ranks}) == 1


def test_padded_validation_counts_the_first_samples_twice(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        right, padded = (rank["evaluations"][name]["confusion"] for name in ("none", "padded_validation"))
        more = [after - before for after, before in zip(chain(*padded), chain(*right), strict=True)]
        assert sorted(more) == [0] * 8 + [1]
        assert more.index(1) < 3, "the first sample is of class 0"


def test_replicas_are_compared_bit_by_bit_and_in_distance(ranks: list[dict[str, Any]]) -> None:
    alike, apart = ranks[0]["fingerprints"]
    assert alike["hashes"][0] == alike["hashes"][1] and alike["distances"] == [0.0, 0.0]
    assert apart["hashes"] == [alike["hashes"][0], apart["hashes"][1]] and len(set(apart["hashes"])) == 2
    weight, bias = ranks[0]["weights"], ranks[0]["bias"]
    expected = 0.5 * weight / math.hypot(weight, bias)
    assert apart["distances"] == [0.0, pytest.approx(expected, rel=1e-4)]


@pytest.mark.parametrize(
    ("name", "place", "doing"),
    [
        (
            "rank0_validates_alone",
            "rank 0 is at step 24, evaluating, in trainers/mistakes/only_rank_0.py",
            "rank 1",
        ),
        ("rank0_saves_alone", "rank 0 is at step 6, saving, in {}/only_rank_0.py", "rank 1"),
        (
            "uneven_batches",
            "in {}/sampling.py",
            "rank 0 is at step 23, in forward and backward",
        ),
    ],
)
def test_a_mistake_that_hangs_is_found_and_named(
    hanging: dict[str, LiveRun], name: str, place: str, doing: str
) -> None:
    live = hanging[name]
    status = live.wait_for_end(FOUND_WITHIN_S)
    assert status.state == "failed", live.story()
    (error,) = live.events("error")
    assert error["code"] == "hang"
    message = error["message"]
    assert place.format("trainers/mistakes") in message and doing in message, message


def test_replicas_of_an_undisturbed_run_stay_identical(finished_run: LiveRun) -> None:
    compared = finished_run.events("fingerprints")
    assert compared[0]["step"] == 1
    for event in compared:
        assert len(set(event["hashes"])) == 1 and event["distances"] == [0.0, 0.0]


def test_replicas_without_averaging_drift_apart_and_do_again_after_a_resume(
    shared_launcher: Launcher,
) -> None:
    """A checkpoint contains rank 0's weights: both ranks resume with equal weights and diverge again."""
    live = shared_launcher.start(
        mistake="no_gradient_averaging", fingerprint_every_steps=5, max_steps=20, num_epochs=100
    )
    live.finish()
    first = [event["distances"][1] for event in live.events("fingerprints")]
    assert len(first) == 4 and first == sorted(first) and first[0] > 0.01
    again = shared_launcher.start_run(live.run, resume_step=20)
    again.wait_for_end()
    assert again.states()[-1] == "finished", again.story()
