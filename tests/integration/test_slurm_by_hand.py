"""The script of a run, submitted manually with sbatch, and Slurm's own checks of GPU requests."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import status as status_file
from trainers.engines.base import JOB_SCRIPT, submitted_script
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine

END_S = 180.0


def test_the_script_works_by_hand(slurm_with_gpus: SlurmCluster, tmp_path: Path) -> None:
    engine = SlurmEngine(Slurm(slurm_with_gpus.environment))
    run = create_run(
        tmp_path / "a folder's runs", nproc_per_node=1, num_epochs=1, partition="gpu", gpu_type="k80"
    )
    run.logs.mkdir(exist_ok=True)
    file = run.path / JOB_SCRIPT
    file.write_text(engine.script(run.read_config(), run.path))
    assert submitted_script(engine, run) == file.read_text()
    slurm_with_gpus.ask("sbatch", str(file))

    def has_finished() -> bool:
        recorded = status_file.read(run.status)
        return recorded is not None and recorded.state == "finished"

    wait_until("the run's end", has_finished, END_S)
    slurm_with_gpus.wait_until_idle()
    wait_until("no process being left", lambda: not processes_of(run), END_S)


@pytest.mark.parametrize(
    "wrong",
    [{"nproc_per_node": 3, "gpu_type": "tesla"}, {"gpu_type": "a100"}, {"memory_gb": 9}, {"num_nodes": 2}],
)
def test_what_is_refused_here_in_words_slurm_refuses_too(
    slurm_with_gpus: SlurmCluster, tmp_path: Path, wrong: dict[str, object]
) -> None:
    engine = SlurmEngine(Slurm(slurm_with_gpus.environment))
    good = create_run(tmp_path, nproc_per_node=1, partition="gpu", device="auto").read_config()
    assert engine.check(good) == []
    config = replace(good, **wrong)  # type: ignore[arg-type]
    assert engine.check(config)
    done = subprocess.run(
        ["sbatch", "--test-only"],
        input=engine.script(config, tmp_path),
        env={**os.environ, **slurm_with_gpus.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0, done.stdout
