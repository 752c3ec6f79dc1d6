"""Recorded steps of a real run with two ranks: the file's content, and unchanged results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from tests.harness import REPOSITORY, START_TIMEOUT_S, Launcher, LiveRun
from tests.integration.conftest import REFERENCE
from trainers.contract import recordings
from trainers.contract.events import Event

GOLDEN = REPOSITORY / "tests" / "golden" / "recording_digits_mlp.json"
NUM_STEPS = 3
PARTS = ["data", "forward", "backward", "optimizer", "other"]
FOUR_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Recorded:
    live: LiveRun
    answers: list[Event]
    event: Event
    content: dict[str, Any]


@pytest.fixture(scope="module")
def recorded(shared_launcher: Launcher) -> Recorded:
    """Return a run like `finished_run` with recorded steps, requested twice in one pause."""
    live = shared_launcher.start(**REFERENCE)
    live.pause_at_start()
    answers = [live.ask("record", num_steps=NUM_STEPS), live.ask("record")]
    live.ask("resume")
    event = live.wait_for("recording")
    live.wait_for_end()
    return Recorded(live=live, answers=answers, event=event, content=recordings.read(live.run, event["step"]))


def test_one_recording_at_a_time_is_made_and_named_by_its_event(
    recorded: Recorded, finished_run: LiveRun
) -> None:
    assert recorded.live.losses() == finished_run.losses(), "the same bits as without a recording"
    assert [answer["accepted"] for answer in recorded.answers] == [True, False]
    assert len(recorded.live.events("recording")) == 1 and not recorded.live.events("warning")
    event, run = recorded.event, recorded.live.run
    path = run.path / event["path"]
    assert path == recordings.path_of(run, event["step"])
    assert path.stat().st_size == event["size_bytes"] < 20_000_000
    assert (event["step"], event["num_steps"]) == (recorded.answers[0]["step"] + 1, NUM_STEPS)
    assert 0 < event["duration_s"] < START_TIMEOUT_S


def test_both_ranks_have_whole_lanes_of_the_same_steps(recorded: Recorded) -> None:
    ranks = recorded.content["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    first = recorded.event["step"]
    for rank in ranks:
        assert [step["step"] for step in rank["steps"]] == list(range(first, first + NUM_STEPS))
        for before, after in pairwise(rank["steps"]):
            assert before["ended_s"] <= after["began_s"]
        for step in rank["steps"]:
            assert [name for name, *_ in step["parts"]] == PARTS
            for (_, _, ended), (_, began, _) in pairwise(step["parts"]):
                assert began == ended, "without a gap"
            _, began, ended = step["parts"][PARTS.index("backward")]
            (reduced,) = step["all_reduces"]
            assert began <= reduced["began_s"] < reduced["ended_s"] <= ended
            moments = [moment for *each, _ in reduced["rounds"] for moment in each]
            assert moments == sorted(moments) and len(moments) == 4


def test_the_buckets_are_all_parameters_of_the_model(recorded: Recorded) -> None:
    (plan,) = recorded.live.events("plan")
    buckets = recorded.content["buckets"]
    assert sum(bucket["bytes"] for bucket in buckets) == FOUR_BYTES * plan["num_parameters"]
    names = [parameter["name"] for bucket in buckets for parameter in bucket["parameters"]]
    assert len(names) == len(set(names)) and any(name.endswith("weight") for name in names)
    for rank in recorded.content["ranks"]:
        for step in rank["steps"]:
            sent = sum(size for each in step["all_reduces"] for *_, size in each["rounds"])
            assert sent == FOUR_BYTES * plan["num_parameters"]


def test_a_recording_is_made_as_the_golden_one_was(recorded: Recorded) -> None:
    clock = {"method": "one clock", "error_s": 0.0, "num_checked": NUM_STEPS, "worst_contradiction_s": 0.0}
    assert recorded.content["clock"] == clock
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert shape(recorded.content) == shape(golden)


def shape(value: Any) -> Any:
    """Return the names and types of a value; for a list, those of its entries."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(shape(item)) for item in value})
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def test_over_gloo_each_bucket_has_its_all_reduce(launcher: Launcher) -> None:
    """The profiler's all-reduces are matched with DDP's buckets; a pause ends a recording early."""
    several = {
        "dataset": "austen",
        "model": "gpt",
        "sequence_length": 32,
        "batch_size": 8,
        "bucket_cap_mb": 1,
    }
    live = launcher.start(**several, all_reduce="backend", num_epochs=100_000, checkpoint_every_steps=10**6)
    live.wait_for_step(3)
    live.ask("record", num_steps=2)
    found = recordings.read(live.run, live.wait_for("recording")["step"])
    (plan,) = live.events("plan")
    sizes = [bucket["bytes"] for bucket in found["buckets"]]
    assert len(sizes) > 1 and sum(sizes) == FOUR_BYTES * plan["num_parameters"]
    for rank in found["ranks"]:
        for step in rank["steps"]:
            assert [each["bucket"] for each in step["all_reduces"]] == list(range(len(sizes)))
            backward = next(part for part in step["parts"] if part[0] == "backward")
            assert all(backward[1] <= each["began_s"] < each["ended_s"] for each in step["all_reduces"])
    assert found["is_blocking"] is False and 0 <= found["numbers"]["overlap"] <= 1
    # torch's clock and ours must be consistent: no all-reduce ends before all ranks have started it.
    assert found["clock"]["num_checked"] == 2 * len(sizes)
    assert found["clock"]["worst_contradiction_s"] < 0.001
    live.run.append_command("record", num_steps=20)
    live.ask("pause")
    early = live.wait_for("recording", lambda event: event["step"] > found["first_step"])
    assert 1 <= early["num_steps"] < 20
    assert recordings.read(live.run, early["step"])["ended_early"] == "The run was paused."
    live.ask("stop", save=False)
    live.wait_for_end()
