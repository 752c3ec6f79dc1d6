"""The parts of a rank's step in real runs: their sum is the step time, and ranks wait for slow ones."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from tests.harness import (
    START_TIMEOUT_S,
    Launcher,
    wait_until,
)
from trainers.contract.events import Event

PARTS = ("data_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s")
# Long steps, so that the time between the parts (occasional reports) is a small share.
LONG_STEPS = {"dataset": "fashion_mnist", "model": "cnn", "batch_size": 128, "checkpoint_every_steps": 10**6}


def measured(events: Iterable[Event], rank: int) -> list[dict[str, Any]]:
    """Return the entries of a rank that contain a measured step."""
    entries = [event["ranks"][rank] for event in events if len(event.get("ranks", ())) > rank]
    return [entry for entry in entries if entry["step_time_s"] is not None]


def share_of_parts(entry: dict[str, Any]) -> float:
    total: float = sum(entry[part] for part in PARTS) / entry["step_time_s"]
    return total


def test_parts_make_up_the_step(launcher: Launcher) -> None:
    live = launcher.start(**LONG_STEPS, gradient_accumulation_steps=2, num_epochs=100_000)
    wait_until("six measured steps", lambda: len(measured(live.events("ranks"), 1)) >= 6, START_TIMEOUT_S)
    for rank in (0, 1):
        entries = measured(live.events("ranks"), rank)
        shares = [share_of_parts(entry) for entry in entries]
        # The remainder is the time that a report waits for a rank delayed by another program, which is not
        # constant.
        assert max(shares) >= 0.8 and median(shares) <= 1.02, entries
        assert all(entry[part] > 0 for entry in entries for part in PARTS), entries
        assert all(0 <= entry["wait_time_s"] <= entry["all_reduce_time_s"] for entry in entries), entries
        assert all(entry["all_reduce_time_s"] <= entry["backward_time_s"] for entry in entries), entries
        assert {entry["hidden_time_s"] for entry in entries} == {0.0}, "shared memory hides nothing"


def test_over_gloo_part_of_the_all_reduce_is_hidden_behind_backward(launcher: Launcher) -> None:
    several_buckets = {"dataset": "austen", "model": "gpt", "sequence_length": 32, "batch_size": 8}
    live = launcher.start(**several_buckets, all_reduce="backend", bucket_cap_mb=1, num_epochs=100_000)
    wait_until("six measured steps", lambda: len(measured(live.events("ranks"), 1)) >= 6, START_TIMEOUT_S)
    for rank in (0, 1):
        entries = measured(live.events("ranks"), rank)
        for entry in entries:
            assert 0 < entry["all_reduce_time_s"] <= entry["backward_time_s"], entry
            assert 0 <= entry["hidden_time_s"] <= entry["all_reduce_time_s"], entry
            assert 0 <= entry["wait_time_s"] <= entry["backward_time_s"], entry
        assert median(entry["hidden_time_s"] for entry in entries) > 0, entries


def test_interleaved_passes_and_unseen_waiting_are_null(launcher: Launcher) -> None:
    """A pipeline interleaves forward and backward; FSDP waits in many places."""
    waiting = {"wait_time_s", "all_reduce_time_s", "hidden_time_s"}
    for strategy, unknown in (
        ("pipeline", {"forward_time_s", "backward_time_s", *waiting}),
        ("zero3", waiting),
    ):
        live = launcher.start(
            dataset="austen",
            model="gpt",
            strategy=strategy,
            sequence_length=32,
            batch_size=8,
            num_epochs=100_000,
        )
        event = live.wait_for("ranks", lambda event: bool(measured([event], 1)), timeout_s=START_TIMEOUT_S)
        entry = event["ranks"][1]
        assert {name for name, value in entry.items() if value is None} == unknown, entry
        assert entry["optimizer_time_s"] > 0
        live.ask("stop", save=False)
        live.wait_for_end()
