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
NEW_RUN = "job-1-elsewhere"
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
