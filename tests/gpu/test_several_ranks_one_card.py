"""Two ranks on one GPU, over gloo: tests of several ranks that need only one GPU.

TRAINERS_SHARE_ONE_GPU=1 puts rank r on GPU r % the number of GPUs. `shares_one_gpu` in
trainers/machine/cuda_environment.py defines which strategies support it: DDP and ZeRO-1. Other strategies
need one GPU per rank and are tested in test_two_gpus.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.place import Place
from tests.gpu.probed import run_probed
from tests.harness import ONE_THREAD, Launcher, LiveRun, create_run, wait_until
from trainers.contract import checkpoint_files
from trainers.contract.events import Event
from trainers.files.json_files import write_json_atomically

COVERED = ("ddp", "zero1")
NUM_RANKS = 2
NEVER = 10**9
QUIET = {"eval_every_steps": NEVER, "checkpoint_every_steps": NEVER, "keep_best_checkpoint": False}
# A single different bit spreads to many after this many steps. CPU ranks only show that the test works.
NUM_STEPS, NUM_SLOW_STEPS = 500, 60


@pytest.fixture
def shared(place: Place) -> dict[str, str]:
    """Return the variables that put both ranks on the first GPU, even if there are several."""
    if not place.is_gpu:
        return {}
    return {"TRAINERS_SHARE_ONE_GPU": "1", "CUDA_VISIBLE_DEVICES": place.uuids[0]}


def values_for(place: Place, strategy: str, **more: Any) -> dict[str, Any]:
    values = {
        "device": place.device,
        "nproc_per_node": NUM_RANKS,
        "strategy": strategy,
        "deterministic": True,
    }
    return values | QUIET | {"num_epochs": 100_000} | more


def devices_of(live: LiveRun) -> list[Event]:
    return list(live.events("devices")[-1]["devices"])


@pytest.mark.parametrize("strategy", COVERED)
def test_ranks_that_share_a_gpu_are_told_apart_and_obey(
    launcher: Launcher, seen: Place, shared: dict[str, str], strategy: str
) -> None:
    """Control and telemetry: each rank reports, on the same card; every command is answered."""
    run = create_run(launcher.runs_dir, **values_for(seen, strategy))
    live = launcher.start_run(run, environment=shared)
    live.wait_for_step(5)
    assert live.ask("pause")["accepted"]
    live.wait_for("devices")
    found = devices_of(live)
    assert [(device["rank"], device["kind"]) for device in found] == [(0, seen.device), (1, seen.device)]
    ranks = live.ranks()
    assert len(set(ranks.values())) == NUM_RANKS
    if seen.is_gpu:
        assert len({device["index"] for device in found}) == 1, "both on one card"
        wait_until("both being seen there", lambda: set(ranks.values()) <= seen.users(seen.uuids[0]), 60.0)
    assert live.ask("set_lr", learning_rate=0.0001)["accepted"]
    saved = live.ask("checkpoint")
    assert saved["accepted"]
    checkpoint_files.verify(live.run, saved["step"])
    assert live.ask("resume")["accepted"]
    live.wait_for_step(saved["step"] + 5)
    stopped = live.ask("stop")
    status = live.wait_for_end()
    assert (status.state, status.exit_code) == ("stopped", 0), live.story()
    checkpoint_files.verify(live.run, stopped["step"])
    assert live.events("warning") == [], live.story()
    seen.wait_until_nobody_of(ranks.values())


@pytest.mark.parametrize("strategy", COVERED)
def test_what_was_saved_goes_on_with_the_same_bits(
    launcher: Launcher, place: Place, shared: dict[str, str], strategy: str
) -> None:
    """A stopped and resumed run is compared with an uninterrupted one."""
    shared = shared | ONE_THREAD
    first = launcher.start_run(create_run(launcher.runs_dir, **values_for(place, strategy)), None, shared)
    first.wait_for_step(10)
    stopped_at = first.ask("stop")["step"]
    assert first.wait_for_end().state == "stopped", first.story()
    ends_at = {"max_steps": stopped_at + 40}
    write_json_atomically(first.run.config, first.run.read_config().to_json() | ends_at)
    second = launcher.start_run(first.run, stopped_at, shared)
    assert second.wait_for_end().state == "finished", second.story()
    whole = launcher.start_run(
        create_run(launcher.runs_dir, **values_for(place, strategy, **ends_at)), None, shared
    )
    assert whole.wait_for_end().state == "finished", whole.story()
    assert min(second.losses()) == stopped_at + 1
    assert first.losses() | second.losses() == whole.losses()


@pytest.mark.parametrize("strategy", COVERED)
def test_weights_are_the_same_on_both_ranks_after_many_steps(
    launcher: Launcher, place: Place, shared: dict[str, str], strategy: str
) -> None:
    """After 500 steps on a GPU the hashes of all parameters are equal."""
    num_steps = NUM_STEPS if place.is_fast else NUM_SLOW_STEPS
    values = values_for(place, strategy, deterministic=False, max_steps=num_steps)
    first, second = run_probed(launcher.runs_dir, "weights", shared, **values)
    assert first["step"] == second["step"] == num_steps
    assert first["hashes"] and first["hashes"] == second["hashes"]
