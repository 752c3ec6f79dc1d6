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
from ddp_gui.launch.elsewhere import TARGETS, ExportedJob
from tests import hostile_words
from trainers.contract import config as config_module
from trainers.contract.rundir import RunDirectory

HOSTILE = f"a'b\"c $(touch pwned) `touch pwned` ${{HOME}} $HOME \\ \n# !x {hostile_words.NAME}"
NEW_RUN = "job-1-elsewhere"
# Fake torchrun: prints its working directory and arguments.
TELL = "#!/usr/bin/env python3\nimport json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n"


# The parts of published formats that concern the files created here: fields ("?" if optional, "*" for any
# name), types, and patterns of names.
#
# Kubeflow Trainer: github.com/kubeflow/trainer, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml
# (commit 0f13bb7a0197) and pkg/apis/trainer/v1alpha1/trainjob_types.go (commit 0015772c282d).
_POD = {
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    "containers": [{"name": str, "volumeMounts": [{"name": str, "mountPath": str}]}],
}
_JOB = {"name": "[a-z0-9]([-a-z0-9]*[a-z0-9])?", "template": {"spec": {"template": {"spec": _POD}}}}
_PATCH = {"manager": str, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [_JOB]}}}}
_TRAINER = {"image": str, "command": [str], "numNodes": int, "numProcPerNode": int}
TRAIN_JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"},
    "spec": {
        "runtimeRef": {"name": str},
        "trainer": _TRAINER | {"resourcesPerNode": {"limits": {"*": int}, "requests": {"*": int}}},
        "runtimePatches": [_PATCH],
    },
}
# SkyPilot: github.com/skypilot-org/skypilot, sky/utils/schemas.py (commit 00052dfe0d13); the pattern of a
# name is from sky/task.py.
SKYPILOT_TASK = {
    "name": "[a-z0-9]+(?:[._-]{1,2}[a-z0-9]+)*",
    "workdir": str,
    "num_nodes": int,
    "resources": {"accelerators?": str, "cpus?": str},
    "setup": str,
    "run": str,
    "envs": {"*": str},
}


def problems(value: Any, rule: Any, at: str = "") -> list[str]:
    """Return the parts of a value that a format does not allow, each with its location."""
    if isinstance(rule, list):
        return [
            each for index, item in enumerate(value) for each in problems(item, rule[0], f"{at}[{index}]")
        ]
    if not isinstance(rule, dict):
        fits = re.fullmatch(rule, value) if isinstance(rule, str) else isinstance(value, rule)
        return [] if fits else [f"{at}: {value!r} is not {rule}"]
    if "*" in rule:
        return [each for name, entry in value.items() for each in problems(entry, rule["*"], f"{at}.{name}")]
    known = {name.removesuffix("?"): entry for name, entry in rule.items()}
    found = [f"{at}.{name}: no field of this name" for name in value.keys() - known.keys()]
    found += [f"{at}.{name} is missing" for name in rule if not name.endswith("?") and name not in value]
    for name in value.keys() & known.keys():
        found += problems(value[name], known[name], f"{at}.{name}")
    return found


def job_of(
    num_nodes: int = 2,
    *,
    with_gpus: bool = False,
    run_id: str = "job-1",
    runs_dir: str = "runs",
    project: str = ".",
    **values: Any,
) -> ExportedJob:
    config = config_module.parse({"dataset": "digits", "model": "mlp", "nproc_per_node": 3, **values})
    return elsewhere.job_of_run(
        RunDirectory(Path(runs_dir) / run_id),
        config,
        runs_dir=runs_dir,
        project=project,
        num_nodes=num_nodes,
        with_gpus=with_gpus,
    )


def given_by_a_shell(script: str, folder: Path, **environment: str) -> list[list[str]]:
    """Run a script with a fake torchrun; return the folder and arguments of each call."""
    (folder / "bin").mkdir()
    (folder / "bin" / "torchrun").write_text(TELL)
    (folder / "bin" / "torchrun").chmod(0o700)
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
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_every_file_names_its_proof_and_never_a_rendezvous_that_unpickles(
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
    assert problems(value, TRAIN_JOB) == []
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
    assert problems(value, SKYPILOT_TASK) == []
    machine = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    ((_, *words),) = given_by_a_shell(value["run"], tmp_path, **machine, RUNS="a 'b' $x")
    assert config_module.parse(config_in(words)).name == job.config.name
    assert is_after(words, "trainers.worker", f"a 'b' $x/{NEW_RUN}")
    if num_nodes > 1:
        assert is_after(words, "--node-rank", "1") and is_after(words, "--master-addr", "10.0.0.1")
    assert subprocess.run(["bash", "-n"], input=value["setup"], text=True, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("chosen", "with_gpus", "device"),
    [("auto", True, "auto"), ("cuda", True, "cuda"), ("cuda", False, "cpu"), ("cpu", True, "auto")],
)
def test_the_device_is_one_that_is_asked_for(chosen: str, with_gpus: bool, device: str) -> None:
    assert job_of(device=chosen, with_gpus=with_gpus).config.device == device


def test_what_has_to_be_there_is_said() -> None:
    said = " ".join(elsewhere.needs(job_of(2, data_path="/somewhere", dataset="own_table")))
    assert "must share the folder of runs" in said and "data_path" in said and "/somewhere" not in said
    assert elsewhere.needs(job_of(1)) == []
    assert "# Set RUNS to a folder" in elsewhere.skypilot_text(job_of(2))
    assert "Set RUNS" not in elsewhere.skypilot_text(job_of(1))
