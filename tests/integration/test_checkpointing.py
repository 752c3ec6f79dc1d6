"""Checkpoints of real torchrun ranks: exactness, changes of world size, failing disks and kills.

Four launches run all jobs; each kill uses a separate launch.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import ONE_THREAD, REPOSITORY, START_TIMEOUT_S, wait_until
from tests.integration.answers import answers_of, command_of
from trainers.contract import checkpoint_files, manifests
from trainers.contract.rundir import RunDirectory

WORKER = "checkpoint_worker"
ALL = ("ddp", "zero1", "zero2", "zero3", "tensor", "pipeline")
MOVED = ("ddp", "zero1", "zero3", "tensor", "pipeline")
SAVED = (*ALL, "data_tensor", "resnet_zero1", "resnet_zero2")

NUM_KILLS = 2
# The world size changes the order of summation; measured: 2.4e-7 in losses of about 2.
LOSS = 2e-6


def _config(strategy: str, world_size: int) -> dict[str, Any]:
    """Return the batch size for a global batch of 16 with any number of ranks."""
    num_replicas = {"tensor": 1, "pipeline": 1, "data_tensor": world_size // 2}.get(strategy, world_size)
    return {"batch_size": 16 // num_replicas}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of all jobs. Later launches load the checkpoints of the first one."""
    folder = tmp_path_factory.mktemp("checkpointing")

    def job(do: str, strategy: str, world_size: int, **more: Any) -> dict[str, Any]:
        run = folder / f"run-{strategy}"
        run.mkdir(exist_ok=True)
        about = {"do": do, "strategy": strategy, "run": str(run), "config": _config(strategy, world_size)}
        return about | more

    two = {name: job("save_and_load", name, 2) for name in ALL}
    for name in ("zero1", "zero2"):  # running statistics, which differ between ranks until they are saved
        run = folder / f"resnet-{name}"
        run.mkdir()
        two[f"resnet_{name}"] = job("save_and_load", name, 2, run=str(run), model="resnet")
    for name, num_bytes in (("ddp", 1000), ("zero3", 100_000)):
        run = folder / f"failing-{name}"
        run.mkdir()
        two[f"{name}_fails"] = job("fail_on_one_rank", name, 2, run=str(run), num_bytes=num_bytes)
    four = {f"{name}_on_four": job("load_elsewhere", name, 4) for name in ("ddp", "zero1", "zero3", "tensor")}
    four["data_tensor"] = job("save_and_load", "data_tensor", 4)
    one = {f"{name}_on_one": job("load_elsewhere", name, 1) for name in MOVED}
    alone = folder / "alone"
    alone.mkdir()
    one["zero3_alone"] = job("save_and_load", "zero3", 1, run=str(alone))
    fewer = {"data_tensor_on_two": job("load_elsewhere", "data_tensor", 2)}
    fewer["zero3_alone_on_two"] = job("load_elsewhere", "zero3", 2, run=str(alone))
    found: dict[str, Any] = {}
    for num_ranks, jobs in ((2, two), (4, four), (1, one), (2, fewer)):
        found |= answers_of(num_ranks, WORKER, folder, jobs)
    errors = {name: answer["error"] for name, answer in found.items() if "error" in answer}
    assert not errors, errors
    return found


@pytest.mark.parametrize("name", SAVED)
def test_loaded_training_goes_on_bit_for_bit(answers: dict[str, Any], name: str) -> None:
    """The checkpoint contains step 3, although training continued to step 6 while it was written."""
    answer = answers[name]
    assert answer["losses_again"] == answer["losses"] and len(answer["losses"]) == 3
    assert answer["ends_alike"] and answer["differs"]
    assert answer["draws_alike"], "every rank's random numbers go on where they were"
    assert answer["progress"] == 7
    assert answer["exported"], "weights are whole in a file that any program reads"
    first, *others = answer["outcomes"]
    assert first[:2] == [3, "step_3"]
    assert all(other == first for other in others), "every rank hears the same outcome"


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [(name, "on_one") for name in MOVED]
    + [(name, "on_four") for name in ("ddp", "zero1", "zero3", "tensor")]
    + [(name, "on_two") for name in ("data_tensor", "zero3_alone")],
)
def test_another_number_of_ranks_goes_on_from_it(answers: dict[str, Any], strategy: str, ranks: str) -> None:
    answer = answers[f"{strategy}_{ranks}"]
    assert answer["step"] == 3
    assert answer["losses"] == pytest.approx(answers[strategy]["losses"], abs=LOSS)


def test_ranks_draw_differently_unless_they_share_a_replica(answers: dict[str, Any]) -> None:
    """New ranks draw different random numbers; ranks of one replica draw the same."""
    drawn = [tuple(numbers[:2]) for numbers in answers["ddp_on_four"]["drawn"]]
    assert len(set(drawn)) == 4
    together = [tuple(numbers[:2]) for numbers in answers["tensor_on_four"]["drawn"]]
    assert len(set(together)) == 1


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_rank_that_cannot_write_fails_the_save_everywhere_and_training_goes_on(
    answers: dict[str, Any], strategy: str
) -> None:
    answer = answers[f"{strategy}_fails"]
    first, second = answer["messages"]
    assert first == second
    assert (
        first.startswith("rank 1 could not write the checkpoint: ") and "exceed the file size limit" in first
    )
    assert answer["left"] == []
    assert answer["outcomes"] == [1, 1], "the next save of the same step works"
    assert len(answer["losses"]) == 2


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_killed_at_any_moment_leaves_whole_checkpoints_to_go_on_from(tmp_path: Path, strategy: str) -> None:
    """Both ranks save at every step; each start resumes from the latest checkpoint after the last kill."""
    run = RunDirectory(tmp_path / "run-1")
    run.path.mkdir()
    job = {"do": "save_for_ever", "strategy": strategy, "run": str(run.path), "config": _config(strategy, 2)}
    moments = random.Random(7)
    newest = 0
    for _ in range(NUM_KILLS):
        with (tmp_path / "output.txt").open("ab") as output:
            ranks = subprocess.Popen(
                command_of(2, WORKER, tmp_path, {"job": job}),
                cwd=REPOSITORY,
                env=os.environ | ONE_THREAD,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            _wait_for_step_after(newest, run)
            time.sleep(moments.uniform(0.1, 0.6))
        finally:
            _kill_all(ranks, str(tmp_path))
        listed = [item.step for item in run.list_checkpoints()]
        checkpoint_files.remove_leftovers(run)
        for step in listed:
            checkpoint_files.verify(run, step)
        assert sorted(path.name for path in run.checkpoints.iterdir()) == sorted(
            f"step_{item.step}" for item in run.list_checkpoints()
        )
        found = manifests.latest_intact(run)
        assert found is not None and found.step > newest, (tmp_path / "output.txt").read_text()[-3000:]
        newest = found.step


def _wait_for_step_after(step: int, run: RunDirectory) -> None:
    wait_until(
        f"a checkpoint after step {step}",
        lambda: any(item.step > step for item in run.list_checkpoints()),
        timeout_s=START_TIMEOUT_S,
    )


def _kill_all(ranks: subprocess.Popen[bytes], marker: str) -> None:
    """SIGKILL torchrun and its ranks, which run in separate sessions."""
    doomed = psutil.Process(ranks.pid).children(recursive=True)
    ranks.send_signal(signal.SIGKILL)
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):  # the process has already ended
            assert any(marker in word for word in process.cmdline()), "only what this test started"
            process.kill()
    ranks.wait()
    psutil.wait_procs(doomed, timeout=60)
