"""Two torchruns that are one job, as on two machines: rank 0 hears of every rank, once a machine."""

from __future__ import annotations

import subprocess
import sys

from tests.harness import REPOSITORY, Launcher, all_events, create_run
from tools.page_driver import free_port

TIMEOUT_S = 120


def test_rank_0_reports_the_ranks_of_every_machine(launcher: Launcher) -> None:
    run = create_run(launcher.runs_dir, max_steps=300, num_epochs=1000, eval_every_steps=300)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), "-m", "trainers.worker", str(run.path)], cwd=REPOSITORY
        )
        for node in range(2)
    ]
    try:
        assert [node.wait(TIMEOUT_S) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    seen = [event for event in all_events(run) if event["kind"] == "devices"]
    assert [(device["rank"], device["node"]) for device in seen[-1]["devices"]] == [(0, 0), (1, 1)]
    steps = [event["ranks"] for event in all_events(run) if event["kind"] == "ranks"]
    assert [rank["rank"] for rank in steps[-1]] == [0, 1] and min(rank["step"] for rank in steps[-1]) > 0
    assert all_events(run)[-1]["state"] == "finished"
