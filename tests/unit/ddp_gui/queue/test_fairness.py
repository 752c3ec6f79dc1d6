"""Tests of the fairness rule of the queue: random days, and disputable cases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ddp_gui.queue.policy import (
    RESERVE_AFTER_S,
    Allocatable,
    Limits,
    Rules,
    Running,
    Situation,
    UsagePeriod,
    Waiting,
    could_fit,
    decide,
    queue_order,
)

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def waits(run_id: str, person: str = "ann", num_ranks: int = 1, asked: float = 0.0, **more) -> Waiting:
    kind = more.pop("kind", "cpu")
    return Waiting(run_id=run_id, person=person, kind=kind, num_ranks=num_ranks, asked_unix_s=asked, **more)


def runs(run_id: str, person: str = "ann", num_ranks: int = 1, began: float = 0.0, **more) -> Running:
    kind = more.pop("kind", "cpu")
    return Running(run_id=run_id, person=person, kind=kind, num_ranks=num_ranks, began_unix_s=began, **more)


def started(situation: Situation, now: float = 1.0) -> list[str]:
    return [start.run_id for start in decide(situation, now)]


def line(situation: Situation, now: float = 1.0) -> list[str]:
    return [run.run_id for run in queue_order(situation, now)]


def test_people_take_turns_however_many_runs_one_of_them_asks_for() -> None:
    waiting = [*(waits(f"ann-{n}", "ann", asked=n) for n in range(5)), waits("bob-0", "bob", asked=99)]
    situation = Situation(waiting=waiting, capacity=Allocatable(cpu_ranks=2))
    assert line(situation)[:3] == ["ann-0", "bob-0", "ann-1"]
    assert started(situation) == ["ann-0", "bob-0"]


def test_who_used_much_lately_comes_after_who_did_not_and_an_hour_later_no_more() -> None:
    waiting = [waits("ann-1", "ann", asked=4000), waits("bob-1", "bob", asked=4100)]
    span = UsagePeriod(person="ann", num_ranks=2, began_unix_s=3000, ended_unix_s=3900)
    situation = Situation(waiting=waiting, capacity=Allocatable(cpu_ranks=1), ended=[span])
    assert line(situation, 4200) == ["bob-1", "ann-1"]
    assert line(situation, 3900 + 3600) == ["ann-1", "bob-1"]


def test_a_run_gets_gpus_nobody_has_and_none_that_somebody_else_occupies_unless_asked() -> None:
    capacity = Allocatable(gpus=GPUS, occupied=frozenset({"GPU-b"}))
    running = [runs("r0", kind="cuda", gpus=("GPU-a",))]
    plain = waits("r1", kind="cuda", num_ranks=3)
    situation = Situation(waiting=[plain], running=running, capacity=capacity)
    assert decide(situation, 1.0) == []
    (start,) = decide(replace(situation, waiting=[replace(plain, may_share=True)]), 1.0)
    assert start.gpus == ("GPU-c", "GPU-d", "GPU-b"), "those that nobody uses come first"


def test_small_runs_pass_a_large_one_for_ten_minutes_and_then_wait_for_it() -> None:
    waiting = [waits("large", "ann", num_ranks=4, asked=0), waits("small", "bob", asked=1)]
    running = [runs("r0", "carl", num_ranks=2)]
    situation = Situation(waiting=waiting, running=running, capacity=Allocatable(cpu_ranks=4))
    assert started(situation, RESERVE_AFTER_S - 1) == ["small"]
    assert started(situation, RESERVE_AFTER_S + 1) == []
    assert started(replace(situation, running=[]), RESERVE_AFTER_S + 1) == ["large"]


def test_a_run_that_can_never_fit_keeps_nobody_back() -> None:
    waiting = [
        waits("never", "ann", num_ranks=9, asked=0),
        waits("blocked", "ann", num_ranks=4, asked=1, kind="cuda"),
        waits("small", "bob", asked=2),
        waits("gpu", "bob", asked=3, kind="cuda"),
    ]
    capacity = Allocatable(gpus=GPUS, occupied=frozenset({"GPU-a"}), cpu_ranks=4)
    assert started(Situation(waiting=waiting, capacity=capacity), 10 * RESERVE_AFTER_S) == ["small", "gpu"]


def test_a_person_at_the_limit_keeps_nobody_back() -> None:
    waiting = [waits("ann-1", "ann", 2, asked=0), waits("bob-1", "bob", 2, asked=1)]
    rules = Rules(everybody=Limits(num_ranks=2), people={"zoe": Limits()})
    situation = Situation(waiting=waiting, running=[runs("ann-0", "ann", 1)], rules=rules)
    situation = replace(situation, capacity=Allocatable(cpu_ranks=3))
    assert started(situation, 10 * RESERVE_AFTER_S) == ["bob-1"]


def a_day(chance: random.Random) -> tuple[Situation, dict[str, float]]:
    """Return a situation with waiting runs of several people, and the duration of each run."""
    people = [f"person {n}" for n in range(chance.randint(1, 6))]
    gpus = GPUS[: chance.randint(1, 4)]
    cpu_ranks = chance.choice([None, 1, 2, 4])
    most = chance.choice([None, 1, 2, 4])
    occupied = frozenset(chance.sample(gpus, chance.randint(0, len(gpus) - 1)))
    waiting = []
    for number in range(chance.randint(1, 25)):
        kind = chance.choice(["cuda", "cpu"])
        room = len(gpus) - len(occupied) if kind == "cuda" else cpu_ranks or 4
        num_ranks = chance.randint(1, min(room, most or room))
        asked = chance.uniform(0, 3000)
        run = waits(f"r{number}", chance.choice(people), num_ranks, asked, kind=kind)
        waiting.append(replace(run, may_share=chance.random() < 0.2))
    capacity = Allocatable(gpus=gpus, occupied=occupied, cpu_ranks=cpu_ranks)
    situation = Situation(waiting=waiting, capacity=capacity, rules=Rules(everybody=Limits(num_ranks=most)))
    return situation, {run.run_id: chance.uniform(1, 2000) for run in waiting}


def assert_nothing_is_given_twice(situation: Situation) -> None:
    capacity, held = situation.capacity, [gpu for run in situation.running for gpu in run.gpus]
    assert len(held) == len(set(held)) and set(held) <= set(capacity.gpus)
    for run in situation.running:
        assert len(run.gpus) == (run.num_ranks if run.kind == "cuda" else 0)
        if not run.run_id.startswith("shares"):
            assert not set(run.gpus) & capacity.occupied
    on_cpu = sum(run.num_ranks for run in situation.running if run.kind == "cpu")
    assert capacity.cpu_ranks is None or on_cpu <= capacity.cpu_ranks
    most = situation.rules.everybody.num_ranks
    for person in {run.person for run in situation.running}:
        ranks = sum(run.num_ranks for run in situation.running if run.person == person)
        assert most is None or ranks <= most


@pytest.mark.parametrize("seed", range(30))
def test_a_random_day_never_goes_over_and_everyone_starts(seed: int) -> None:
    situation, takes_s = a_day(random.Random(seed))
    situation = replace(
        situation,
        waiting=[
            replace(run, run_id=f"shares-{run.run_id}") if run.may_share else run for run in situation.waiting
        ],
    )
    takes_s |= {f"shares-{run_id}": seconds for run_id, seconds in takes_s.items()}
    now, ends_at = 3000.0, dict[str, float]()
    while situation.waiting:
        begun = {start.run_id: start.gpus for start in decide(situation, now)}
        assert begun or ends_at, "somebody waits, nobody runs, and nobody is started"
        new = [
            runs(run.run_id, run.person, run.num_ranks, now, kind=run.kind, gpus=begun[run.run_id])
            for run in situation.waiting
            if run.run_id in begun
        ]
        ends_at |= {run_id: now + takes_s[run_id] for run_id in begun}
        left = [run for run in situation.waiting if run.run_id not in begun]
        situation = replace(situation, waiting=left, running=[*situation.running, *new])
        assert_nothing_is_given_twice(situation)
        assert decide(situation, now) == [], "all that can be started was"
        if ends_at:
            ended = min(ends_at, key=lambda run_id: ends_at[run_id])
            now = max(now, ends_at.pop(ended))
            going_on = [run for run in situation.running if run.run_id != ended]
            situation = replace(situation, running=going_on)


def test_mig_instances_are_handed_out_one_by_one() -> None:
    capacity = Allocatable(gpus=("GPU-a", "MIG-b", "MIG-c"))
    two, one = waits("two", kind="cuda", num_ranks=2), waits("one", "bob", kind="cuda", num_ranks=1)
    starts = decide(Situation(waiting=[two, one], running=[], capacity=capacity), 10.0)
    assert [(start.run_id, start.gpus) for start in starts] == [("one", ("GPU-a",))]
    assert not could_fit(two, capacity) and could_fit(one, capacity)
    held = [runs("r0", kind="cuda", gpus=("GPU-a",))]
    starts = decide(Situation(waiting=[one], running=held, capacity=capacity), 10.0)
    assert [start.gpus for start in starts] == [("MIG-b",)]
