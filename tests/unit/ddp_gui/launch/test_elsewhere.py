"""Tests of exports to other systems: real shells and a real YAML reader recover the original values."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddp_gui.launch import elsewhere
from ddp_gui.launch.elsewhere import TARGETS, Job
from tests import hostile_words
from tests.unit.ddp_gui.launch import schemas
from tests.unit.ddp_gui.launch.schema_check import problems
from trainers.contract import config as config_module
from trainers.contract.rundir import RunDirectory

HOSTILE = f"a'b\"c $(touch pwned) `touch pwned` ${{HOME}} $HOME \\ \n# !x {hostile_words.NAME}"
HOSTILE_DIR = "a 'b' \"c\" $(touch pwned) `touch pwned` \\ \n é"
NEW_RUN = "job-1-elsewhere"
# Fake srun: runs the task of the second node.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
[[ "$SRUN_CPUS_PER_TASK" == 3 ]] && SLURM_NODEID=1 exec "$@"
"""
SCONTROL = """#!/bin/bash
[[ "$*" == "show hostnames n[1-2]" ]] && printf 'n1\\nn2\\n'
"""
# Fake torchrun: prints its working directory and arguments.
TELL = "#!/usr/bin/env python3\nimport json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n"


def job_of(
    num_nodes: int = 2,
    *,
    with_gpus: bool = False,
    run_id: str = "job-1",
    runs_dir: str = "runs",
    project: str = ".",
    **values: Any,
) -> Job:
    config = config_module.parse({"dataset": "digits", "model": "mlp", "nproc_per_node": 3, **values})
    return elsewhere.job_of_run(
        RunDirectory(Path(runs_dir) / run_id),
        config,
        runs_dir=runs_dir,
        project=project,
        num_nodes=num_nodes,
        with_gpus=with_gpus,
    )


def stand_in(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o700)


def given_by_a_shell(script: str, folder: Path, **environment: str) -> list[list[str]]:
    """Run a script with a fake torchrun; return the folder and arguments of each call."""
    stand_in(folder / "bin", "torchrun", TELL)
    variables = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": "/", **environment}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not list(folder.rglob("pwned")), "what was quoted has been executed"
    return [json.loads(line) for line in done.stdout.splitlines()]


def config_in(words: list[str]) -> dict[str, Any]:
    value = json.loads(words[words.index("--config") + 1])
    assert isinstance(value, dict)
    return value


def is_after(words: list[str], name: str, value: str) -> bool:
    return words[words.index(name) + 1] == value


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("num_nodes", [1, 2, 5])
def test_every_file_names_what_was_tried_and_never_the_rendezvous_that_unpickles(
    target: str, num_nodes: int
) -> None:
    text = TARGETS[target].make(job_of(num_nodes))
    said = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    assert TARGETS[target].proof in said
    assert ("trusted network" in said) is (num_nodes > 1)
    if num_nodes > 1:
        assert "rdzv" not in text and "c10d" not in text, "the static rendezvous is the default"
    else:
        assert "store_type=file" in text and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in text


@pytest.mark.parametrize("target", ["torchrun", "slurm"])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_shell_can_read_every_script(target: str, num_nodes: int) -> None:
    text = TARGETS[target].make(job_of(num_nodes, name=HOSTILE, runs_dir=HOSTILE_DIR, project=HOSTILE_DIR))
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_torchrun_command_gives_what_was_chosen(tmp_path: Path) -> None:
    project = tmp_path / HOSTILE_DIR
    project.mkdir()
    job = job_of(2, name=HOSTILE, runs_dir=HOSTILE_DIR, project=str(project), batch_size=7)
    first, second = given_by_a_shell(elsewhere.torchrun_text(job), tmp_path)
    for rank, (folder, *words) in enumerate([first, second]):
        assert folder == str(project)
        assert is_after(words, "--node-rank", str(rank)) and is_after(words, "--nnodes", "2")
        assert is_after(words, "--master-addr", elsewhere.FIRST_ADDRESS)
        assert is_after(words, "--nproc-per-node", "3") and is_after(words, "-m", "trainers.worker")
        assert is_after(words, "trainers.worker", f"{HOSTILE_DIR}/{NEW_RUN}")
        config = config_module.parse(config_in(words))
        assert (config.name, config.batch_size, config.world_size) == (job.config.name, 7, 6)
        assert HOSTILE.split("\n")[0] in config.name


def test_one_machine_gets_one_command_without_a_port(tmp_path: Path) -> None:
    (words,) = given_by_a_shell(elsewhere.torchrun_text(job_of(1)), tmp_path)
    assert "--master-addr" not in words and is_after(
        words, "--rdzv-conf", words[words.index("--rdzv-conf") + 1]
    )
    assert config_module.parse(config_in(words)).num_nodes == 1


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_slurm_script_gives_srun_what_was_chosen(num_nodes: int, tmp_path: Path) -> None:
    project = tmp_path / HOSTILE_DIR
    project.mkdir()
    stand_in(tmp_path / "bin", "srun", SRUN)
    stand_in(tmp_path / "bin", "scontrol", SCONTROL)
    job = job_of(num_nodes, name=HOSTILE, runs_dir=HOSTILE_DIR, project=str(project), with_gpus=True)
    text = elsewhere.sbatch_text(job)
    slurm = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": "3"}
    ((folder, *words),) = given_by_a_shell(text, tmp_path, **slurm)
    assert folder == str(project) and is_after(words, "trainers.worker", f"{HOSTILE_DIR}/job-1-job12345")
    assert config_module.parse(config_in(words)).name == job.config.name
    if num_nodes > 1:
        assert is_after(words, "--node-rank", "1") and is_after(words, "--master-addr", "n1")
        assert is_after(words, "--master-port", "22345")
    asked = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert asked == text.splitlines()[1 : 1 + len(asked)], "Slurm reads no directive after the first command"
    for option in (f"--nodes={num_nodes}", "--ntasks-per-node=1", "--gpus-per-node=3", "--cpus-per-task=3"):
        assert f"#SBATCH {option}" in asked


@pytest.mark.parametrize("with_gpus", [False, True])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_train_job_is_what_kubeflow_publishes(num_nodes: int, with_gpus: bool) -> None:
    job = job_of(num_nodes, with_gpus=with_gpus, name=HOSTILE)
    value = yaml.safe_load(elsewhere.trainjob_text(job))
    assert value == elsewhere.trainjob_value(job)
    assert problems(value, schemas.TRAIN_JOB) == []
    trainer = value["spec"]["trainer"]
    kind = "nvidia.com/gpu" if with_gpus else "cpu"
    assert trainer["resourcesPerNode"]["limits"] == {kind: 3}
    # Kubernetes expands $(NAME) in a command, and replaces $$ by $.
    words = [
        re.sub(r"\$\((\w+)\)|\$\$", lambda found: "$" if found[1] is None else "?", w)
        for w in trainer["command"]
    ]
    assert config_module.parse(config_in(words)).name == job.config.name
    assert ("--nnodes" in words) is (num_nodes > 1) and f"{elsewhere.RUNS}/{NEW_RUN}" in words


@pytest.mark.parametrize("with_gpus", [False, True])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_task_is_what_skypilot_publishes(num_nodes: int, with_gpus: bool, tmp_path: Path) -> None:
    job = job_of(num_nodes, with_gpus=with_gpus, name=HOSTILE)
    value = yaml.safe_load(elsewhere.skypilot_text(job))
    assert value == elsewhere.skypilot_value(job)
    assert problems(value, schemas.SKYPILOT_TASK) == []
    assert problems(value["resources"], schemas.SKYPILOT_RESOURCES) == []
    machine = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    ((_, *words),) = given_by_a_shell(value["run"], tmp_path, **machine, RUNS="a 'b' $x")
    assert config_module.parse(config_in(words)).name == job.config.name
    assert is_after(words, "trainers.worker", f"a 'b' $x/{NEW_RUN}")
    if num_nodes > 1:
        assert is_after(words, "--node-rank", "1") and is_after(words, "--master-addr", "10.0.0.1")
    assert subprocess.run(["bash", "-n"], input=value["setup"], text=True, timeout=60).returncode == 0


def test_machines_in_a_cloud_are_told_to_share_a_folder() -> None:
    assert "# Set RUNS to a folder" in elsewhere.skypilot_text(job_of(2))
    assert "Set RUNS" not in elsewhere.skypilot_text(job_of(1))


def test_scripts_in_yaml_can_be_read_by_people() -> None:
    text = elsewhere.skypilot_text(job_of(2))
    assert "run: |\n  set -euo pipefail\n" in text


def test_the_check_of_schemas_finds_what_is_wrong() -> None:
    value = elsewhere.trainjob_value(job_of(2))
    value["spec"]["trainer"]["numNodes"] = "2"
    value["spec"]["podTemplateOverrides"] = []
    value["metadata"]["name"] = "1-Job"
    del value["spec"]["runtimeRef"]
    found = " ".join(problems(value, schemas.TRAIN_JOB))
    for place in (".numNodes", ".podTemplateOverrides: no field", ".metadata.name", ".runtimeRef is missing"):
        assert place in found
    assert problems({"accelerators": 8, "gpus": 1}, schemas.SKYPILOT_RESOURCES)


@pytest.mark.parametrize("run_id", ["job-1", "1", "_", "A_b.C--", "x" * 100, "9.-", "a" * 39 + ".b"])
def test_any_run_gets_a_name_that_every_engine_takes(run_id: str) -> None:
    job = job_of(run_id=run_id)
    assert problems(elsewhere.trainjob_value(job), schemas.TRAIN_JOB) == []
    assert problems(elsewhere.skypilot_value(job), schemas.SKYPILOT_TASK) == []
    assert RunDirectory(Path(job.new_run)).path.name == job.new_run and len(job.new_run) <= 100


@pytest.mark.parametrize(
    ("chosen", "with_gpus", "device"),
    [
        ("auto", True, "auto"),
        ("auto", False, "auto"),
        ("cuda", True, "cuda"),
        ("cuda", False, "cpu"),
        ("cpu", True, "auto"),
        ("cpu", False, "cpu"),
    ],
)
def test_the_device_is_one_that_is_asked_for(chosen: str, with_gpus: bool, device: str) -> None:
    assert job_of(device=chosen, with_gpus=with_gpus).config.device == device


def test_what_has_to_be_there_is_said() -> None:
    said = " ".join(elsewhere.needs(job_of(2, data_path="/somewhere", dataset="own_table")))
    assert "same folder of runs" in said and "data_path" in said and "/somewhere" not in said
    assert elsewhere.needs(job_of(1)) == []
