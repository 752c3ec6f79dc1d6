"""The check of speed on a GPU, its ways gone on the CPU: real runs, started and looked into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu import job, looks
from benchmarks.gpu.bench import Bench, Effort
from benchmarks.gpu.job import Window
from tests.harness import Launcher, all_events
from trainers.contract.rundir import RunDirectory


@pytest.fixture
def one_core() -> Iterator[None]:
    """Two threads of so small a model wait for each other, most of all where other tests run beside."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def bench(tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, one_core: None) -> Bench:
    (tmp_path / "prepared").mkdir()
    monkeypatch.setenv("TRAINERS_CACHE", str(tmp_path / "prepared"))
    return Bench(
        name="gpt",
        device="cpu",
        is_tiny=True,
        compile_mode=None,
        wanted_batch=None,
        effort=Effort(
            rounds=2,
            window=Window(warm_up=2, seconds=1.0, waits_for_sample=False),
            looked_at_warm_up=2,
            looked_at_steps=2,
            block_s=0.2,
        ),
        folder=tmp_path,
        launcher=launcher,
    )


def test_a_job_is_timed_from_its_events_and_stopped(bench: Bench, launcher: Launcher) -> None:
    found = job.measure(launcher, bench.config(bench.case.small_batch), bench.effort.window)
    assert found.samples_per_s > 0
    assert found.samples_per_s < 2 * found.samples_per_s_in_steps
    assert list(launcher.runs_dir.glob("*/checkpoints/*")) == []


def test_watching_is_switched_on_and_off_within_one_job(bench: Bench) -> None:
    notes = bench.look_into(
        bench.case.small_batch, "watching", warm_up=2, num_pairs=2, seconds=bench.effort.block_s
    )
    assert len(notes["on_step_s"]) == len(notes["off_step_s"]) == 2
    assert min(notes["on_step_s"] + notes["off_step_s"]) > 0
    (run,) = bench.launcher.runs_dir.iterdir()
    told = [event["step"] for event in all_events(RunDirectory(run)) if event["kind"] == "step"]
    # The steps of the blocks without it are missing in the events, and only those.
    num_off = 2 * (notes["steps_a_block"] + looks.SETTLING_STEPS)
    assert max(told) - len(told) == num_off
