"""Tests of the output of Slurm commands and of batch scripts, without a cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.harness import wait_until
from trainers.contract.config import Config
from trainers.contract.events import State
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.slurm import engine as slurm_engine
from trainers.engines.slurm import script
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.endings import SlurmError
from trainers.engines.slurm.engine import SlurmEngine

HOSTILE = 'run\'; touch $(pwned) `x` "y" ü'


def put(folder: Path, name: str, body: str) -> Slurm:
    """Return a Slurm client that uses a script in place of one command."""
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    return Slurm({"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"})


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
    # The launcher of node 0 sends the notifications when the run ends.
    assert got("submitted") == {"SLURM_CONF", "MODULEPATH", "DDP_NOTIFY_URLS"}


def test_every_value_of_the_script_is_quoted(tmp_path: Path) -> None:
    run_dir = tmp_path / HOSTILE
    text = script.batch_script(Config(num_nodes=2, nproc_per_node=4), run_dir, 70, max_restarts=3)
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))
    assert shlex.split(options["job-name"]) == [f"ddp-{HOSTILE}"]
    assert shlex.split(options["output"]) == [str(run_dir / "logs" / script.LOG)]
    assert (options["nodes"], options["ntasks-per-node"], options["cpus-per-task"]) == ("2", "1", "4")
    # Run the script with fake Slurm commands that print their arguments.
    put(tmp_path, "scontrol", "printf 'n1\\nn2\\n'")
    slurm = put(tmp_path, "srun", 'for word; do printf "%s\\0" "$word"; done; printf "%s %s" "$HEAD" "$PORT"')
    variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    variables["SLURM_CPUS_PER_TASK"] = "4"
    environment = {**os.environ, **slurm._variables, **variables}
    done = subprocess.run(["bash"], input=text, env=environment, capture_output=True, text=True, check=True)
    *words, meeting = done.stdout.split("\0")
    # Since Slurm 22.05, srun does not inherit this option from sbatch; without it all ranks of a node share a
    # core.
    assert "--cpus-per-task=4" in words
    assert str(run_dir) in words and words[-2:] == ["--resume", "70"]
    assert meeting == f"n1 {script.FIRST_PORT + 12}"
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    ("signs", "num_restarts", "asked"),
    [
        pytest.param("again over", 0, ["requeue 12"], id="node 0 asks for the next start"),
        pytest.param("again over", 1, [], id="Slurm has started it again: an old start ends no successor"),
        pytest.param("over", 0, [], id="the run has ended"),
        pytest.param("cut-off", 0, ["requeue 12"], id="the node reached nothing"),
        pytest.param("cut-off", 1, [], id="the node reached nothing, and Slurm has put the job back"),
    ],
)
def test_a_batch_script_puts_only_its_own_start_back_and_leaves_no_srun(
    tmp_path: Path, signs: str, num_restarts: int, asked: list[str]
) -> None:
    """Run the script with fake Slurm commands that log their calls; srun never ends."""
    noted, pid = tmp_path / "noted", tmp_path / "pid"
    ended = f"[ ! -e {pid} ] || kill -9 $(cat {pid}) 2>/dev/null"  # as Slurm kills the processes of a start
    note = f'[ "$1" = show ] && echo n1 || {{ echo "$@" >> {noted}; {ended}; true; }}'
    put(tmp_path, "scontrol", note)
    put(tmp_path, "squeue", f'[ {num_restarts} = 0 ] || {ended}; echo "{num_restarts}       "')
    told = f'for name in {signs}; do echo 0 > "$DDP_SIGNS/$name"; done'
    slurm = put(tmp_path, "srun", f"trap '' TERM; echo $$ > {pid}; {told}; exec sleep 600")
    text = script.batch_script(Config(num_nodes=2), tmp_path / "run", None, max_restarts=3)
    variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "2"}
    environment = {**os.environ, **slurm._variables, **variables, "SLURM_CPUS_PER_TASK": "1"}
    subprocess.run(["bash"], input=text, env=environment, text=True, timeout=60, check=False)
    assert (noted.read_text().splitlines() if noted.exists() else []) == asked
    wait_until("the end of srun", lambda: not psutil.pid_exists(int(pid.read_text())), 10.0)


def test_resume_cancels_the_earlier_job_and_waits_until_it_is_gone(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm drains a node that runs two jobs of the same id ("Duplicate jobid")."""
    gone = tmp_path / "gone"
    put(tmp_path, "scancel", f"touch {tmp_path}/asked; (sleep 1; touch {gone}) >/dev/null 2>&1 &")
    slurm = put(
        tmp_path, "squeue", f"[ -e {gone} ] && state=CANCELLED || state=COMPLETING; "
        f"echo \"12|$state|None|n1|p|1|0|0|$(cat {tmp_path}/name)\""
    )  # fmt: skip
    (tmp_path / "name").write_text(f"{script.job_name(run.path)}\n")
    engine = SlurmEngine(slurm)

    def recorded(state: State) -> None:
        run.write_status(Status(state=state, engine="slurm", handle={"job_id": "12"}))

    recorded("running")
    with pytest.raises(ValueError, match="has job 12 in Slurm, which has not ended"):
        engine._end_earlier_job(run)
    recorded("failed")
    engine._end_earlier_job(run)
    assert gone.exists(), "it was waited for"
    gone.unlink()
    (tmp_path / "asked").unlink()
    (tmp_path / "name").write_text("a job of another run\n")
    recorded("running")
    engine._end_earlier_job(run)
    assert not (tmp_path / "asked").exists(), "the number of a copied run is that of another job"
    (tmp_path / "name").write_text(f"{script.job_name(run.path)}\n")
    recorded("failed")
    put(tmp_path, "scancel", "true")  # a node that does not respond: Slurm does not end the job
    monkeypatch.setattr(slurm_engine, "EARLIER_JOB_LIMIT_S", 1.0)
    with pytest.raises(SlurmError, match=r"job 12, the last one of this run, was cancelled .* on n1 yet"):
        engine._end_earlier_job(run)


@pytest.mark.parametrize("name", ["two\nlines", "50%j", "bell\a"])
def test_what_slurm_would_read_in_a_value_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be used in a batch script"):
        script.batch_script(Config(), tmp_path / name, None, max_restarts=3)
