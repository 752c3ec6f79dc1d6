"""Users' scripts on GPUs: watching changes no bit, and the exported script of a run reproduces it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.gpu.place import Place
from tests.harness import END_TIMEOUT_S, TORCHRUN, Launcher, run_to_end
from tests.integration.test_scripts import SCRIPTS, losses_of, start
from tests.script_text import config_of, script_of
from trainers.machine import nvml

NUM_STEPS = 50


@pytest.mark.many_gpus
def test_a_script_on_gpus_is_watched_without_changing_a_bit(
    gpu: Place, launcher: Launcher, tmp_path: Path
) -> None:
    alone, watched = tmp_path / "alone", tmp_path / "watched"
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(gpu.num), str(SCRIPTS / "on_gpus.py")]
    exit_code, said = run_to_end(command, END_TIMEOUT_S, {"LOSSES": str(alone)})
    assert exit_code == 0, said
    live = start(
        launcher,
        "on_gpus",
        device="cuda",
        nproc_per_node=gpu.num,
        script_environment=f"LOSSES={watched}",
    )
    status = live.wait_for_end(END_TIMEOUT_S)
    assert status.state == "finished", live.story()
    expected = losses_of(alone)
    assert len(losses_of(watched)) == len(expected) == gpu.num
    about = live.events("script")[-1]
    assert about["backend"] == "nccl" and about["model"] == "Sequential" and not about["replaced"]
    own = [[float.fromhex(loss) for loss in rank] for rank in losses_of(watched)]
    means = [sum(losses) / gpu.num for losses in zip(*own, strict=True)]
    assert len(live.events("step")) == len(means)
    if gpu.is_fast:  # simulated GPUs do not compute
        assert losses_of(watched) == expected
        assert [step["loss"] for step in live.events("step")] == pytest.approx(means, rel=1e-6)
        assert live.events("finding") == [], "no false alarm"
    for rank in live.events("ranks")[-1]["ranks"]:
        parts = [rank[f"{part}_time_s"] for part in ("data", "forward", "backward", "optimizer")]
        assert 0 < sum(parts) <= rank["step_time_s"] * 1.001, rank
        assert rank["peak_memory_bytes"] > 2**20, rank
    devices = live.events("devices")[-1]["devices"]
    assert [(device["rank"], device["kind"], device["index"]) for device in devices] == [
        (rank, "cuda", gpu.index_of(rank)) for rank in range(gpu.num)
    ]


def test_a_loss_that_is_read_in_each_step_is_a_remark_with_its_cost(
    gpu: Place, launcher: Launcher, tmp_path: Path
) -> None:
    variables = f"LOSSES={tmp_path / 'losses'}"
    live = start(
        launcher,
        "on_gpus",
        device="cuda",
        nproc_per_node=1,
        script_arguments="--reads",
        script_environment=variables,
    )
    assert live.wait_for_end(END_TIMEOUT_S).state == "finished", live.story()
    (finding,) = live.events("finding")
    assert (finding["code"], finding["level"]) == ("reads_each_step", "remark")
    assert re.search(r"the host waited \d+\.\d\d ms per step", finding["message"])
    assert "print" in (SCRIPTS / "on_gpus.py").read_text().splitlines()[finding["line"] - 1]


@pytest.mark.real_gpu("it compares results of kernels")
def test_the_script_of_a_run_computes_the_run_on_a_gpu(
    gpu: Place, launcher: Launcher, tmp_path: Path
) -> None:
    """The same kernels in the same order; only the order of additions in some kernels may differ."""
    values = {"dataset": "fashion_mnist", "model": "cnn", "batch_size": 32, "deterministic": True}
    values |= {"device": "cuda", "nproc_per_node": 1, "max_steps": NUM_STEPS, "num_epochs": 100}
    live = launcher.start(**values)
    assert live.wait_for_end(END_TIMEOUT_S).state == "finished", live.story()
    (tmp_path / "train.py").write_text(script_of(config_of(**values)).text, encoding="utf-8")
    done = subprocess.run(
        [TORCHRUN[0], "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = {
        int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", done.stdout, re.M)
    }
    expected = live.losses()
    apart = max(abs(printed[step] - expected[step]) for step in expected)
    print(f"{nvml.num_gpus()} GPU, {NUM_STEPS} steps: losses differ by at most {apart:.3g}")
    assert sorted(printed) == sorted(expected) == list(range(1, NUM_STEPS + 1))
    assert printed == pytest.approx(expected, rel=1e-4)
