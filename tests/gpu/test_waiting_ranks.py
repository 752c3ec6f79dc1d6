"""A template and CPU ranks are on no GPU, and a template starts a run immediately."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.gpu.clicks import served
from tests.gpu.place import Place
from tests.harness import (
    ANSWER_TIMEOUT_S,
    REPOSITORY,
    START_TIMEOUT_S,
    all_events,
    create_run,
    torchrun_by_hand,
    wait_until,
)
from tests.integration.test_standby import END_S, NUM_RANKS, Begin, begin, family, template_of
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local.warm_pool import StartRequest

__all__ = ["begin"]

LONG = {"dataset": "digits", "model": "mlp", "num_epochs": 100_000, "optimizer": "adamw"}
# A run that does not start immediately waits for a GPU until the template is released: 15 minutes.
AT_ONCE_S = 60.0


def newest(run: RunDirectory, kind: str) -> Event | None:
    return next((event for event in reversed(all_events(run)) if event["kind"] == kind), None)


def has_trained(run: RunDirectory, num_steps: int) -> bool:
    step = newest(run, "step")
    return step is not None and step["step"] >= num_steps


def test_a_template_is_on_no_gpu(seen: Place, begin: Begin) -> None:
    """After all imports, no process is on a GPU."""
    process = begin()
    template_of(process)
    assert not seen.users() & {each.pid for each in family(process)}


def test_a_cpu_run_with_adamw_started_by_hand_is_on_no_gpu(seen: Place, tmp_path: Path) -> None:
    """AdamW's step on the CPU queries the stream of torch's accelerator, which may open a CUDA context."""
    run = create_run(tmp_path / "runs", **LONG, nproc_per_node=2)
    with (tmp_path / "output.txt").open("wb") as output:
        torchrun = subprocess.Popen(torchrun_by_hand(run), cwd=REPOSITORY, stdout=output, stderr=output)
    try:
        wait_until("twenty steps", lambda: has_trained(run, 20), START_TIMEOUT_S)
        found = psutil.Process(torchrun.pid)
        pids = {found.pid, *(child.pid for child in found.children(recursive=True))}
        assert len(pids) >= 3, "torchrun and two ranks"
        assert not seen.users() & pids
        run.append_command("stop", save=False)
        assert torchrun.wait(END_S) == 0, (tmp_path / "output.txt").read_text()[-3000:]
    finally:
        for left in psutil.Process(torchrun.pid).children(recursive=True) if torchrun.poll() is None else []:
            left.kill()
        torchrun.kill()
        torchrun.wait(ANSWER_TIMEOUT_S)


def test_a_template_that_is_given_no_gpu_sees_none(place: Place, begin: Begin, tmp_path: Path) -> None:
    """The order's empty CUDA_VISIBLE_DEVICES takes effect in time: ranks with `device: auto` use the CPU."""
    run = create_run(tmp_path / "runs", **LONG, nproc_per_node=NUM_RANKS, device="auto", max_steps=30)
    process = begin()
    template_of(process)
    assert process.stdin is not None
    process.stdin.write(
        StartRequest(run_dir=str(run.path), environment={"CUDA_VISIBLE_DEVICES": ""}).to_line()
    )
    process.stdin.close()
    assert process.wait(END_S) == 0
    assert liveness.read_status(run).state == "finished"
    starting = next(event for event in all_events(run) if event["kind"] == "state")
    assert starting["reason"].startswith("2 CPU ranks from the warm pool")
    found = newest(run, "devices")
    assert found is not None and {device["kind"] for device in found["devices"]} == {"cpu"}


def test_start_takes_the_template_at_once_and_the_gpu_was_empty(
    seen: Place, page_packages: None, tmp_path: Path
) -> None:
    """The same path as a click: page, queue, template. Also on a machine with one GPU."""
    with served(tmp_path / "runs") as page:
        page.open_form(1)
        standing_by = page.wait_for_template()
        assert not seen.users() & standing_by
        live = page.start(**LONG, nproc_per_node=1, device=seen.device)
        assert live.answer["place"] is None, f"it had to wait: {json.dumps(page.ask('queue'))}"
        assert live.waited_s() < AT_ONCE_S
        live.wait_for_step(10)
        assert "from the warm pool" in live.started_from(), live.started_from()
        (rank,) = live.ranks().values()
        assert psutil.Process(rank).ppid() in standing_by
        if seen.is_gpu:
            assert len(live.granted()) == 1 and len(seen.gpus_of(rank)) == 1
        assert not seen.users() & standing_by, "its supervisor and torchrun are on none"
        live.stop(save=False)
        seen.wait_until_nobody_of([rank])


def test_a_cpu_run_beside_a_gpu_run_is_on_no_gpu_and_neither_waits(
    seen: Place, page_packages: None, tmp_path: Path
) -> None:
    with served(tmp_path / "runs", "--no-standby") as page:
        first = page.start(**LONG, nproc_per_node=1, device=seen.device)
        first.wait_for_step(10)
        second = page.start(**LONG, nproc_per_node=2, device="cpu")
        assert second.answer["place"] is None
        second.wait_for_step(10)
        (rank,) = first.ranks().values()
        assert not seen.users() & set(second.ranks().values())
        assert (rank in seen.users()) == seen.is_gpu
        assert first.state() == second.state() == "running"
        second.stop(save=False)
        first.stop(save=False)


@pytest.mark.many_gpus
def test_a_second_run_waits_for_the_gpu_that_the_first_has_and_then_begins(
    seen: Place, gpu: Place, page_packages: None, tmp_path: Path
) -> None:
    """The first run uses all GPUs; the second waits in the queue and starts when they are free."""
    with served(tmp_path / "runs", "--no-standby") as page:
        first = page.start(**LONG, nproc_per_node=gpu.num, device="cuda")
        first.wait_for_step(10)
        second = page.start(**LONG, nproc_per_node=1, device="cuda", max_steps=50)
        assert second.answer["place"] == 1
        first.stop(save=False)
        second.wait_for_end("finished")
