"""Tests of review rules that no script of the integration tests triggers, and of their thresholds."""

from __future__ import annotations

from typing import Any

from trainers.watch import spool
from trainers.watch.review import MAX_LOSSES, Review

PASS = {
    "number": 1, "num_batches": 10, "num_samples": 640, "batch_size": 32, "sampler": "DistributedSampler",
    "shuffles": True, "order": 1, "num_epochs": 3, "file": "train.py", "line": 7,
}  # fmt: skip
MODEL = {"wrapper": "ddp", "name": "Net", "num_parameters": 10, "device": "cpu", "num_batch_norms": 0}


def review_of(num_ranks: int, **notes: list[dict[str, Any]]) -> Review:
    """Return a review in which rank k has noted the k-th value of each kind."""
    review = Review(num_ranks)
    for kind, of_ranks in notes.items():
        for rank, note in enumerate(of_ranks):
            review.add_note(rank, kind, dict(note))
    return review


def codes(review: Review) -> list[str]:
    """Return the codes of the new findings."""
    return [finding["code"] for finding in review.new_findings()]


def test_all_ranks_on_one_gpu() -> None:
    same = [MODEL | {"device": "cuda:0"}] * 2
    assert codes(review_of(2, model=same)) == ["one_gpu"]
    assert codes(review_of(2, model=[same[0], MODEL | {"device": "cuda:1"}])) == []
    assert codes(review_of(1, model=same[:1])) == [], "one rank has one GPU"


def test_different_numbers_of_batches() -> None:
    uneven = [PASS, PASS | {"num_batches": 9}]
    (finding,) = review_of(2, model=[MODEL] * 2, **{"pass": uneven}).new_findings()
    assert finding["code"] == "uneven_inputs" and "rank 1 has 9" in finding["message"]
    assert finding["line"] == 7
    assert codes(review_of(2, model=[MODEL] * 2, **{"pass": [PASS, PASS]})) == []


def test_few_shared_samples_are_padding() -> None:
    mine, others = list(range(1000)), list(range(995, 1995))
    notes = [{"hashes": mine, "num_samples": 1000}, {"hashes": others, "num_samples": 1000}]
    assert codes(review_of(2, samples=notes)) == []
    notes[1] = {"hashes": list(range(500, 1500)), "num_samples": 1000}
    assert codes(review_of(2, samples=notes)) == ["same_samples"]
    constant = {"hashes": [7], "num_samples": 1000}
    assert codes(review_of(2, samples=[constant, constant])) == [], "equal samples say nothing"


def test_a_group_that_a_library_begins_is_not_the_scripts_to_destroy() -> None:
    ends = [{"status": spool.DONE, "is_destroyed": False}] * 2
    for by_script in (True, False):
        review = review_of(2, end=ends, group=[{"by_script": by_script}] * 2)
        found = [finding["code"] for finding in review.new_findings(is_over=True)]
        assert found == (["no_destroy"] if by_script else [])


def test_replicas_that_an_average_makes_equal_are_a_remark_which_replaces_the_mistake() -> None:
    review = review_of(2, model=[MODEL | {"wrapper": "none"}] * 2)
    found = []
    for step, hashes, is_averaged in ((1, "ab", False), (40, "cc", True), (50, "de", False)):
        review.add_fingerprints({"step": step, "is_averaged": is_averaged, "line": 8}, hashes)
        review.add_step(max(step, 39), [1.0, 1.0])
        found += review.new_findings()
    assert [(each["code"], each["level"]) for each in found] == [
        ("replicas_differ", "mistake"), ("replicas_differ", "remark"),
    ]  # fmt: skip
    assert found[1]["line"] == 8


def test_rank_0s_loss_is_found_in_a_long_script() -> None:
    """It is compared while the losses of its step are kept."""
    review = review_of(2)
    for step in range(1, 3 * MAX_LOSSES):
        if step in (10, 20):
            review.add_note(0, "read", {"step": step, "value": 1.0, "loss": 1.0, "line": 5})
        review.add_step(step, [1.0, 2.0])
        assert step % 1000 or codes(review) == []
    (finding,) = review.new_findings(is_over=True)
    assert finding["code"] == "shown_loss" and "mean over the ranks is 1.5" in finding["message"]


def test_sgd_on_four_ranks_in_ddp_is_reminded_of_the_rate() -> None:
    for num_ranks, name, is_written, expected in (
        (2, "SGD", True, []),
        (4, "SGD", True, ["rate_not_scaled"]),
        (4, "SGD", False, []),  # multiplied by the number of ranks
    ):
        about = {"name": name, "lr": 0.1, "line": 7, "is_rate_written": is_written}
        review = review_of(num_ranks, model=[MODEL] * num_ranks, optimizer=[about] * num_ranks)
        assert codes(review) == expected


def test_a_loss_that_is_read_from_the_gpu_in_each_step_is_a_remark_with_its_time() -> None:
    note = {"num": 50, "num_steps": 50, "waited_s": 0.2, "line": 3}
    (finding,) = review_of(1, waits=[note]).new_findings()
    assert finding["code"] == "reads_each_step" and "waited 4.00 ms a step" in finding["message"]
    for other in (note | {"num": 5}, note | {"num_steps": 10}):
        assert codes(review_of(1, waits=[other])) == [], "now and then, or in the first steps"


def test_replicas_in_ddp_are_judged_after_a_further_step() -> None:
    review = review_of(2, model=[MODEL] * 2)
    review.add_fingerprints({"step": 1, "is_averaged": False}, "ab")
    review.add_step(1, [1.0, 1.0])
    assert list(review.new_findings(is_over=True)) == [], "unused parameters end DDP here"
    review.add_step(2, [1.0, 1.0])
    (finding,) = review.new_findings(is_over=True)
    assert finding["code"] == "replicas_differ" and "changed outside" in finding["message"]


def test_unused_parameters_are_named() -> None:
    ends = [{"status": 2, "unused": [f"head.{number}" for number in range(7)]}]
    review = review_of(2, model=[MODEL | {"line": 3}] * 2, end=ends)
    (finding,) = review.new_findings(is_over=True)
    assert finding["code"] == "unused_parameters" and finding["line"] == 3
    assert "head.0" in finding["message"] and "and 2 more" in finding["message"]


def test_messages_are_those_of_a_pipeline_unless_the_ranks_have_replicas() -> None:
    """DDP over all ranks, or over those of one stage; a ring that averages gradients by hand."""
    sharing = [MODEL | {"num_sharing": number} for number in (4, 2, 1)]
    over_all, of_stage, by_hand = (review_of(4, model=[model] * 4, messages=[{}]) for model in sharing)
    assert (over_all.is_split, of_stage.is_split, by_hand.is_split) == (False, True, True)
    of_stage.add_fingerprints({"step": 1, "is_averaged": False}, "aabb")
    by_hand.add_fingerprints({"step": 1, "is_averaged": False}, "aaaa")
    assert of_stage.is_split and not by_hand.is_split
