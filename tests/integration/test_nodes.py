"""Two torchruns form one job, as on two machines: rank 0 receives reports of every rank."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.harness import REPOSITORY, Launcher, all_events, create_run, wait_until
from tools.page_driver import free_port
from trainers.contract import recordings
from trainers.contract.rundir import RunDirectory

TIMEOUT_S = 180
A_MOMENT_S = 0.001


def test_rank_0_reports_the_ranks_of_every_machine(launcher: Launcher) -> None:
    run = create_run(
        launcher.runs_dir, num_nodes=2, nproc_per_node=1, num_epochs=100_000, eval_every_steps=50
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), "-m", "trainers.worker", str(run.path)], cwd=REPOSITORY
        )
        for node in range(2)
    ]
    try:
        wait_until(
            "the devices of both machines",
            lambda: [(d["rank"], d["node"]) for d in newest(run, "devices")] == [(0, 0), (1, 1)],
            TIMEOUT_S,
        )
        wait_until("a step of both ranks", lambda: steps(run, [0, 1]) > 0, TIMEOUT_S)
        wait_until(
            "an evaluation", lambda: any(event["kind"] == "eval" for event in all_events(run)), TIMEOUT_S
        )
        run.append_command("record", num_steps=2)
        wait_until("a recording", lambda: recordings.list_recordings(run), TIMEOUT_S)
        run.append_command("stop", save=False)
        assert [node.wait(TIMEOUT_S) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    # Later events may contain only rank 0: a machine whose rank has ended no longer reports.
    states = [event["state"] for event in all_events(run) if event["kind"] == "state"]
    assert states == ["starting", "running", "stopping", "stopped"], all_events(run)[-3:]
    # Both machines share one clock here, so their timestamps must agree within the error of the pings.
    (event,) = [event for event in all_events(run) if event["kind"] == "recording"]
    recording = recordings.read(run, event["step"])
    clock = recording["clock"]
    assert clock["method"] == "pings" and 0 < clock["error_s"] < 1
    assert clock["num_checked"] == 2 * len(recording["buckets"]) > 0
    assert clock["worst_contradiction_s"] <= clock["error_s"] + A_MOMENT_S


def newest(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    """Return the entries of all ranks in the latest `devices` or `ranks` event."""
    return next((event[kind] for event in reversed(all_events(run)) if event["kind"] == kind), [])


def steps(run: RunDirectory, ranks: list[int]) -> int:
    """Return the smallest step of these ranks, or 0 until exactly these ranks are reported."""
    newest_ranks = newest(run, "ranks")
    return min(rank["step"] for rank in newest_ranks) if [r["rank"] for r in newest_ranks] == ranks else 0
