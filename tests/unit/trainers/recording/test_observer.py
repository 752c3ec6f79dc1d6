"""The usual observer is still notified while steps are recorded; pauses and stops end a recording early."""

from __future__ import annotations

from collections.abc import Iterator

from trainers.parallel.strategy import Averaged, Bucket, Round
from trainers.recording import recorder
from trainers.recording.profiled import Collective
from trainers.recording.recorder import RecordingObserver
from trainers.report.observer import NullObserver

BUCKETS = (
    Bucket(parameters=(("last.weight", 400), ("last.bias", 40))),
    Bucket(parameters=(("first.weight", 800),)),
)


class Usual(NullObserver):
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.step_time_s, self.data_time_s = 0.0, 0.0

    def begin_step(self, *, is_reported: bool, is_first_of_epoch: bool = False) -> None:
        self.told.append("begin")

    def data_fetched(self) -> None:
        self.told.append("data")

    def forward_done(self) -> None:
        self.told.append("forward")

    def backward_done(self, *, is_last: bool) -> None:
        self.told.append("backward")

    def optimizer_done(self) -> None:
        self.told.append("optimizer")

    def end_step(self, step: int) -> None:
        self.told.append(f"end {step}")
        self.step_time_s, self.data_time_s = 0.5, 0.25


class Ticks:
    """A clock that returns 1, 2, 3, …"""

    def __init__(self) -> None:
        self._next: Iterator[int] = iter(range(1, 1000))

    def now(self) -> int:
        return next(self._next)

    def when_ns(self, moment: int) -> int:
        return moment * 100


def go_through(observer: NullObserver, step: int, *, num_batches: int = 1) -> None:
    observer.begin_step(is_reported=False)
    for batch in range(num_batches):
        observer.data_fetched()
        observer.forward_done()
        observer.backward_done(is_last=batch == num_batches - 1)
    observer.optimizer_done()
    observer.end_step(step)


def recording(
    num_steps: int, *, divides_passes: bool = True
) -> tuple[Usual, RecordingObserver, list[str | None]]:
    usual, ended = Usual(), list[str | None]()
    observer = RecordingObserver(
        usual, Ticks(), num_steps=num_steps, divides_passes=divides_passes, on_full=ended.append
    )
    return usual, observer, ended


def test_the_usual_observer_hears_all_and_its_times_are_passed_on() -> None:
    usual, observer, ended = recording(2)
    go_through(observer, 8)
    assert usual.told == ["begin", "data", "forward", "backward", "optimizer", "end 8"]
    assert (observer.step_time_s, observer.data_time_s) == (0.5, 0.25)
    assert ended == []
    go_through(observer, 9)
    assert ended == [None] and [step.step for step in observer.steps] == [8, 9]


def test_parts_follow_each_other_without_a_gap() -> None:
    _, observer, _ = recording(1)
    go_through(observer, 8, num_batches=2)
    notes = recorder.rank_notes_of(observer.steps, Ticks(), averaged=[], collectives=[], buckets=[])
    (step,) = notes["steps"]
    names = [name for name, *_ in step["parts"]]
    assert names == ["data", "forward", "backward", "data", "forward", "backward", "optimizer", "other"]
    assert [began for _, began, _ in step["parts"]] == [
        step["began"],
        *(end for *_, end in step["parts"][:-1]),
    ]
    assert step["parts"][-1][2] == step["ended"]


def test_interleaved_passes_are_one_part() -> None:
    _, observer, _ = recording(1, divides_passes=False)
    go_through(observer, 8)
    assert [part for part, _ in observer.steps[0].marks] == ["data", "both", "optimizer", "other"]


def test_what_is_left_in_the_middle_of_a_step_is_no_step_of_the_recording() -> None:
    _, observer, ended = recording(3)
    go_through(observer, 8)
    observer.begin_step(is_reported=False)
    observer.data_fetched()
    observer.end_recording("The run was stopped.")
    assert ended == ["The run was stopped."] and [step.step for step in observer.steps] == [8]


def test_a_usual_observer_has_no_recording_to_end() -> None:
    usual = NullObserver()
    usual.end_recording("The run was paused.")
    assert not usual.is_recording and RecordingObserver.is_recording


def collective(name: str, began_ns: int) -> Collective:
    return Collective(name=name, began_ns=began_ns, ended_ns=began_ns + 50, num_bytes=4)


def noted(collectives: list[Collective], averaged: list[Averaged] | None = None) -> dict[str, object]:
    """Return a step from 100 to 600, whose backward is from 300 to 400."""
    _, observer, _ = recording(1)
    go_through(observer, 8)
    notes = recorder.rank_notes_of(
        observer.steps, Ticks(), averaged=averaged or [], collectives=collectives, buckets=BUCKETS
    )
    (step,) = notes["steps"]
    assert next(part for part in step["parts"] if part[0] == "backward")[1:] == [300, 400]
    found: dict[str, object] = step
    return found


def test_what_begins_in_backward_is_one_all_reduce_for_each_bucket_in_their_order() -> None:
    moments = (310, 390, 450, 900)
    reduces = [collective("gloo:all_reduce", began) for began in moments]
    step = noted([collective("gloo:broadcast", 220), *reduces])
    assert step["all_reduces"] == [
        {"bucket": 0, "began": 310, "ended": 360, "rounds": []},
        {"bucket": 1, "began": 390, "ended": 400, "rounds": []},  # the end of backward
    ]
    assert step["collectives"] == [["gloo:broadcast", 220, 270, 4], ["gloo:all_reduce", 450, 500, 4]]


def test_all_reduces_that_are_not_one_for_each_bucket_are_no_buckets() -> None:
    step = noted([collective("gloo:all_reduce", began) for began in (310, 320, 330)])
    assert step["all_reduces"] == [] and len(step["collectives"]) == 3  # type: ignore[arg-type]


def test_what_a_strategy_notes_itself_has_its_rounds() -> None:
    piece = Round(num_bytes=440, began_ns=310, written_ns=315, met_ns=330, ended_ns=335)
    averaged = [
        Averaged(began_ns=305, ended_ns=340, bucket=BUCKETS[0], rounds=(piece,)),
        Averaged(began_ns=350, ended_ns=390, bucket=BUCKETS[1], rounds=()),
        Averaged(began_ns=750, ended_ns=790, bucket=BUCKETS[0], rounds=()),
    ]
    step = noted([], averaged)
    assert step["all_reduces"] == [
        {"bucket": 0, "began": 305, "ended": 340, "rounds": [[310, 315, 330, 335, 440]]},
        {"bucket": 1, "began": 350, "ended": 390, "rounds": []},
    ]


def test_names_of_the_profiler_say_what_goes_round_and_on_which_way() -> None:
    ring = collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0)
    tree = collective("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", 0)
    assert (ring.algorithm, tree.algorithm) == ("ring", "tree")
    assert ring.is_all_reduce and tree.is_all_reduce and collective("gloo:all_reduce", 0).is_all_reduce
    for other in ("gloo:all_gather", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "gloo:broadcast"):
        assert not collective(other, 0).is_all_reduce
    assert collective("gloo:all_reduce", 0).algorithm is None
