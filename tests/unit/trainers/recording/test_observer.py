"""The usual observer is still notified while steps are recorded; pauses and stops end a recording early."""

from __future__ import annotations

from collections.abc import Iterator

from trainers.parallel.strategy import Averaged
from trainers.recording import recorder
from trainers.recording.profiled import Collective
from trainers.recording.recorder import RecordingObserver
from trainers.report.observer import NullObserver

BUCKETS = (
    (("last.weight", 400), ("last.bias", 40)),
    (("first.weight", 800),),
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


def test_names_of_the_profiler_say_what_goes_round_and_on_which_way() -> None:
    ring = collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0)
    tree = collective("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", 0)
    assert (ring.algorithm, tree.algorithm) == ("ring", "tree")
    assert ring.is_all_reduce and tree.is_all_reduce and collective("gloo:all_reduce", 0).is_all_reduce
    for other in ("gloo:all_gather", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "gloo:broadcast"):
        assert not collective(other, 0).is_all_reduce
    assert collective("gloo:all_reduce", 0).algorithm is None
