"""Scripts that run a job elsewhere, executed to the end: two torchruns on this machine act as two machines.

Fake srun and scontrol start the processes that the real ones would start; the test sets SkyPilot's variables.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from ddp_gui.launch import elsewhere
from ddp_gui.launch.elsewhere import PORT, ExportedJob
from tests.harness import END_TIMEOUT_S, REPOSITORY, SMALL, all_events, processes_of
from tools.page_driver import free_port
from trainers.contract import config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

HERE = "127.0.0.1"
NODES = "cpu[1-2]"
NUM_STEPS = 5
# Start the command once per node, both on this machine; fail if either fails.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
wait "$first" && wait "$second"
"""
SCONTROL = f"""#!/bin/bash
[[ "$*" == 'show hostnames {NODES}' ]] && printf '{HERE}\\n{HERE}\\n'
"""


@pytest.fixture
def job(tmp_path: Path) -> ExportedJob:
    values = {**SMALL, "nproc_per_node": 1, "max_steps": NUM_STEPS, "name": "it's $(hostname) & `date`"}
    return elsewhere.job_of_run(
        RunDirectory(tmp_path / "digits-mlp-1"),
        config.parse(values),
        runs_dir=str(tmp_path),
        project=str(REPOSITORY),
        num_nodes=2,
        with_gpus=False,
    )


def test_the_torchrun_commands_train_to_the_end(job: ExportedJob) -> None:
    text = (
        elsewhere.torchrun_text(job)
        .replace(elsewhere.FIRST_ADDRESS, HERE)
        .replace(str(PORT), str(free_port()))
    )
    _, first, second = text.split("# Machine ")
    # The text before the first line break is the rest of the comment.
    give([f"# {first}", f"# {second}"])
    assert_trained(RunDirectory(Path(job.runs_dir) / job.new_run), job)


def test_the_slurm_script_trains_to_the_end(job: ExportedJob, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, script in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(script)
        (tools / name).chmod(0o700)
    number = str(free_port_of_a_job())
    slurm = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": NODES, "SLURM_CPUS_PER_TASK": "1"}
    give([elsewhere.sbatch_text(job)], [slurm], tools)
    assert_trained(RunDirectory(tmp_path / f"{job.run_id}-job{number}"), job)


def test_the_script_of_the_skypilot_task_trains_to_the_end(job: ExportedJob, tmp_path: Path) -> None:
    script = yaml.safe_load(elsewhere.skypilot_text(job))["run"].replace(str(PORT), str(free_port()))
    machines = {"SKYPILOT_NODE_IPS": f"{HERE}\n{HERE}", "RUNS": str(tmp_path)}
    give([script, script], [{**machines, "SKYPILOT_NODE_RANK": str(rank)} for rank in range(2)])
    assert_trained(RunDirectory(tmp_path / job.new_run), job)


def give(
    scripts: Sequence[str], more: Sequence[Mapping[str, str]] = ({}, {}), tools: Path | None = None
) -> None:
    """Run each script in a separate shell in the project folder, all concurrently; wait until they end."""
    path = f"{tools}:" if tools else ""
    terminal = {"PATH": f"{path}{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": os.environ["HOME"]}
    shells = [
        subprocess.Popen(
            ["bash", "-c", script],
            cwd=REPOSITORY,
            env={**terminal, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for script, variables in zip(scripts, more, strict=False)
    ]
    try:
        for shell in shells:
            output, _ = shell.communicate(timeout=END_TIMEOUT_S)
            assert shell.returncode == 0, output[-3000:]
    finally:
        for shell in shells:
            if shell.poll() is None:
                os.killpg(shell.pid, 9)
                shell.wait()


def assert_trained(run: RunDirectory, job: ExportedJob) -> None:
    """Check that the ranks of both machines trained one complete run with the given configuration."""
    assert run.read_config() == job.config
    told = all_events(run)
    assert [event["step"] for event in told if event["kind"] == "step"] == list(range(1, NUM_STEPS + 1))
    assert {
        device["node"] for event in told if event["kind"] == "devices" for device in event["devices"]
    } == {0, 1}
    assert liveness.read_status(run).state == "finished"
    assert run.list_checkpoints()[-1].step == NUM_STEPS
    assert run.rank_log(1).exists() and processes_of(run) == []


def free_port_of_a_job() -> int:
    """Return a job number from which the script derives a free port."""
    for number in range(os.getpid() % 5000, 10_000):
        with socket.socket() as tried:
            try:
                tried.bind(("", 20_000 + number))
            except OSError:
                continue
            return number
    raise AssertionError("no port is free")
