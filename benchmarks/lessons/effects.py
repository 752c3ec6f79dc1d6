"""What each lesson says will happen, as a statement about what its runs wrote down."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.contract.rundir import RunDirectory

END_LOSSES = 20
# Of the rank that a lesson slows down, in each step.
SLEEP_S = 0.040


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run that has ended: its state, and all of its events."""

    state: str
    events: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, run: RunDirectory, state: str) -> Outcome:
        """Read what a run wrote down."""
        lines = run.events.read_text(encoding="utf-8").splitlines()
        return cls(state=state, events=[json.loads(line) for line in lines])

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def losses(self) -> list[float]:
        """Return the loss of every step."""
        return [step["loss"] for step in self.of_kind("step")]

    @property
    def end_loss(self) -> float:
        """Return the mean loss of the last steps."""
        return statistics.fmean(self.losses[-END_LOSSES:])

    @property
    def samples_per_s(self) -> float:
        """Return the speed at the median step."""
        times = [step["step_time_s"] for step in self.of_kind("step")]
        return float(self.of_kind("plan")[-1]["global_batch"] / statistics.median(times))

    @property
    def took_s(self) -> float:
        """Return the seconds from its first event to its last."""
        return float(self.events[-1]["time_unix_s"] - self.events[0]["time_unix_s"])

    def held_bytes(self) -> list[int]:
        """Return what each rank holds, counted on its tensors."""
        fields = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
        return [sum(rank[field] for field in fields) for rank in self.of_kind("ranks")[-1]["ranks"]]

    def jitter(self) -> float:
        """Return how far the loss jumps from step to step, on average."""
        return statistics.fmean(abs(after - before) for before, after in itertools.pairwise(self.losses))


def largest_difference(one: Outcome, other: Outcome) -> float:
    """Return by how much the losses of two runs differ at most, step by step."""
    return max(abs(mine - theirs) for mine, theirs in zip(one.losses, other.losses, strict=True))


def two_ranks_are_behind(runs: Sequence[Outcome]) -> bool:
    """Two ranks with as many images each have learnt less; accumulation does the same as ranks."""
    one, two, accumulated = runs
    return two.end_loss > 1.2 * one.end_loss and largest_difference(two, accumulated) < 1e-4


def hardly_faster(runs: Sequence[Outcome]) -> bool:
    """Half of the images on each of two ranks gain hardly anything; as many images gain more."""
    one, half, whole = (run.samples_per_s for run in runs)
    return half < 1.35 * one and whole > half


def memory_is_cut(runs: Sequence[Outcome]) -> bool:
    """Each strategy holds the share of DDP's bytes that it should."""
    ddp, *others = (run.held_bytes() for run in runs)
    shares = [max(held) / ddp[0] for held in others]
    zero1, zero2, *halves = shares
    return ddp[0] == ddp[1] and 0.7 < zero1 < 0.8 and 0.55 < zero2 < 0.7 and max(halves) < 0.55


def same_bits(runs: Sequence[Outcome]) -> bool:
    """The same run has the same bits, and on one rank only the last digits differ."""
    two, again, one = runs
    return (
        two.losses == again.losses
        and statistics.fmean(two.losses) != statistics.fmean(one.losses)
        and largest_difference(two, one) < 1e-3
    )


def second_rank_adds_nothing(runs: Sequence[Outcome]) -> bool:
    """Without a sampler two ranks are one, but for rounding."""
    sampled, unsampled, alone = runs
    return largest_difference(unsampled, alone) < 0.01 * largest_difference(sampled, alone)


def replicas_drift(runs: Sequence[Outcome]) -> bool:
    """Without averaging the weights of the ranks get further and further apart."""
    averaged, apart = (run.of_kind("fingerprints") for run in runs)
    same = all(len(set(each["hashes"])) == 1 for each in averaged)
    distances = [max(each["distances"]) for each in apart]
    middle = len(distances) // 2
    return same and bool(averaged) and 0 < distances[0] < distances[middle] < distances[-1]


def sum_is_a_longer_step(runs: Sequence[Outcome]) -> bool:
    """The sum over two ranks is the mean with twice the learning rate."""
    mean, added, doubled = runs
    return largest_difference(added, doubled) < 1e-3 < 0.01 < largest_difference(added, mean)


def rank_0_wavers_more(runs: Sequence[Outcome]) -> bool:
    """Rank 0's own loss jumps further, and the training is the same."""
    mean, own = runs
    same = mean.of_kind("eval")[-1]["metrics"] == own.of_kind("eval")[-1]["metrics"]
    return same and own.jitter() > 1.15 * mean.jitter()


def hangs_and_is_found(runs: Sequence[Outcome]) -> bool:
    """The twin hangs, is found, and ends within half a minute."""
    right, wrong = runs
    is_named = any("rank" in event["message"] for event in wrong.of_kind("error"))
    return right.state == "finished" and wrong.state == "failed" and is_named and wrong.took_s < 30


def both_ranks_are_recorded(runs: Sequence[Outcome]) -> bool:
    """The steps that the lesson asks for are recorded while it trains."""
    (run,) = runs
    return [each["num_steps"] for each in run.of_kind("recording")] == [3]


def all_wait_for_the_slow_one(runs: Sequence[Outcome]) -> bool:
    """Rank 0's steps take as much longer as rank 1 sleeps, and the losses are the same."""
    fast, slowed = runs
    asked = [each["step"] for each in slowed.of_kind("command") if each["accepted"]]
    if not asked:
        return False
    usual_s, slow_s = (
        statistics.median(step["step_time_s"] for step in run.of_kind("step") if step["step"] > asked[0])
        for run in runs
    )
    return slow_s - usual_s > 0.8 * SLEEP_S and fast.losses == slowed.losses


# By the lesson's name: the statement in words, and whether some runs bear it out.
EFFECTS: dict[str, tuple[str, Callable[[Sequence[Outcome]], bool]]] = {
    "what-a-rank-is": ("three steps of both ranks are recorded", both_ranks_are_recorded),
    "the-slowest-decides": ("rank 0’s steps: over 32 ms longer; the same losses", all_wait_for_the_slow_one),
    "who-sees-what": ("no sampler: a hundred times as near to one rank as with it", second_rank_adds_nothing),
    "same-replicas": ("averaged: same hashes; not averaged: the distance grows", replicas_drift),
    "global-batch": ("two ranks: a loss over 1.2 times as high; accumulated: the same", two_ranks_are_behind),
    "sum-or-mean": ("the sum’s losses are those of twice the learning rate", sum_is_a_longer_step),
    "whose-loss": ("rank 0’s loss jumps over 1.15 times as far; the same validation", rank_0_wavers_more),
    "rank-0-alone": ("it hangs, the ranks are named, over within 30 s", hangs_and_is_found),
    "uneven-batches": ("it hangs, the ranks are named, over within 30 s", hangs_and_is_found),
    "speed-up": ("under 1.35 times as fast with half of the images each, more with as many", hardly_faster),
    "who-holds-what": ("ZeRO-1 three quarters, ZeRO-2 five eighths, the others a half", memory_is_cut),
    "seeds-and-bits": ("once more: the same bits; one rank: the mean’s last digits differ", same_bits),
}  # fmt: skip
