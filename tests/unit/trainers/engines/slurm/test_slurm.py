"""What is read from Slurm's commands and what is written for it, without a cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from trainers.contract.config import Config
from trainers.engines.slurm import script
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.remembered import SlurmError

HOSTILE = 'run\'; touch $(pwned) `x` "y" ü'


def put(folder: Path, name: str, body: str) -> Slurm:
    """Return a cluster one of whose commands is a script of ours."""
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    return Slurm({"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})


def test_jobs_are_read_by_separators_and_asked_for_once(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    slurm = put(
        tmp_path, "squeue", f"echo x >> {asked}; echo '12|RUNNING|None|n[1-2]'; echo '13|PENDING|Priority|'"
    )
    running, waiting = slurm.find("12"), slurm.find("13")
    assert running is not None and waiting is not None and slurm.find("14") is None
    assert (running.state, running.nodes, running.has_ended) == ("RUNNING", "n[1-2]", False)
    assert (waiting.reason, waiting.has_ended) == ("Priority", False)
    assert asked.read_text().count("x") == 1


def test_a_controller_that_does_not_answer_is_an_error_in_its_words_and_left_alone(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    slurm = put(tmp_path, "squeue", f"echo x >> {asked}; echo '{said}' >&2; exit 1")
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        slurm.find("12")
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        slurm.find("12")
    assert asked.read_text().count("x") == 1


def test_commands_get_no_secrets_and_no_defaults_that_hide_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "SQUEUE_PARTITION": "gpu",
        "SLURM_JOB_ID": "7",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_CONF": "/etc/conf",
        "HF_TOKEN": "x",
        "DDP_NOTIFY_URLS": "json://x",
        "MODULEPATH": "/modules",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    slurm = put(tmp_path, "squeue", f"env > {tmp_path}/asked")
    put(tmp_path, "sbatch", f"env > {tmp_path}/submitted; echo 12")
    assert slurm.find("12") is None and slurm.submit("#!/bin/sh") == "12"

    def got(file: str) -> set[str]:
        return {line.partition("=")[0] for line in (tmp_path / file).read_text().splitlines()} & given.keys()

    assert got("asked") == {"SLURM_CONF", "MODULEPATH"}
    # The launcher of node 0 tells people of the run's end.
    assert got("submitted") == {"SLURM_CONF", "MODULEPATH", "DDP_NOTIFY_URLS"}


def test_every_value_of_the_script_is_quoted(tmp_path: Path) -> None:
    run_dir = tmp_path / HOSTILE
    text = script.batch_script(Config(num_nodes=2, nproc_per_node=4), run_dir, 70, max_restarts=3)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))
    assert shlex.split(options["job-name"]) == [f"ddp-{HOSTILE}"]
    assert shlex.split(options["output"]) == [str(run_dir / "logs" / script.LOG)]
    assert (options["nodes"], options["ntasks-per-node"], options["cpus-per-task"]) == ("2", "1", "4")
    # Run for real, with commands of Slurm that only tell what they were given.
    put(tmp_path, "scontrol", "printf 'n1\\nn2\\n'")
    slurm = put(tmp_path, "srun", 'for word; do printf "%s\\0" "$word"; done; printf "%s %s" "$HEAD" "$PORT"')
    variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    variables["SLURM_CPUS_PER_TASK"] = "4"
    environment = {**os.environ, **slurm._variables, **variables}
    done = subprocess.run(["bash"], input=text, env=environment, capture_output=True, text=True, check=True)
    *words, meeting = done.stdout.split("\0")
    # Since Slurm 22.05 srun does not take that over from sbatch: all ranks of a node would share a core.
    assert "--cpus-per-task=4" in words
    assert str(run_dir) in words and words[-2:] == ["--resume", "70"]
    assert meeting == f"n1 {script.FIRST_PORT + 12}"
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("name", ["two\nlines", "50%j", "bell\a"])
def test_what_slurm_would_read_in_a_value_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a batch script"):
        script.batch_script(Config(), tmp_path / name, None, max_restarts=3)
