"""A cluster node that loses its network, its shared folder or both, or is set down.

The important cases lose both: with only the shared folder lost, a launcher still receives messages from the
others, and with only the network lost, it still reads their files. Each test checks the states that the page
shows, and their timing.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tests.cluster.slurm_cluster import Shape, SlurmCluster, slurm_cluster, what_is_missing
from tests.cluster.victims import rank_of
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness, registry
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine, job_id_of
from trainers.engines.slurm.script import CLEANUP_S
from trainers.machine.processes import is_alive

REPORTED_S = 30.0
PATIENCE_S = 180.0
RESTARTED_S = 180.0
# The end of every process is reported before.
STAYS_S = 8.0
# Longer than the lease, so that the launchers notice a lost node before Slurm does.
NODE_TIMEOUT_S = 45
# Causes without evidence that older versions reported.
FALSE_CAUSES = ("exit()", "different collectives", "Free some space", "GLHF", "asked the run to end")


@dataclass
class Watched:
    """A training run on two nodes, and the states that a page shows after a fault."""

    run: RunDirectory
    slurm: SlurmCluster
    engine: SlurmEngine
    ranks: list[psutil.Process]
    began_at: float = 0.0
    states: list[tuple[float, str]] = field(default_factory=list)

    def watch_until(self, what: str, is_true: Any, timeout_s: float) -> float:
        """Record state changes until the condition is true; return the elapsed seconds."""

        def look() -> bool:
            state = liveness.read_status(self.run).state
            if not self.states or self.states[-1][1] != state:
                self.states.append((time.monotonic() - self.began_at, state))
            return bool(is_true())

        wait_until(f"{what}; shown until then: {self.states}", look, timeout_s)
        return time.monotonic() - self.began_at

    def is_in(self, state: str) -> bool:
        return self.states[-1][1] == state

    def words(self) -> str:
        """Return all states, warnings, errors and answers of the run as text."""
        said = [event for event in events.read_all(self.run.events) if event["kind"] in SAID]
        return "\n".join(str(event) for event in said) + str(liveness.read_status(self.run).error)

    def job(self) -> str:
        return job_id_of(liveness.read_status(self.run).handle) or ""


SAID = ("state", "warning", "error", "command")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start a cluster that marks a silent node as down after `NODE_TIMEOUT_S`."""
    if missing := what_is_missing():
        pytest.skip(f"NOT RUN: {missing}")
    shape = Shape(node_timeout_s=NODE_TIMEOUT_S, returns_to_service=1)
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), shape) as made:
        yield made


@pytest.fixture
def watched(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Yield a run on two nodes with a checkpoint. Cancels its job afterwards and waits for its processes."""
    engine = SlurmEngine(Slurm(cluster.environment))
    monkeypatch.setitem(registry._ENGINES, engine.name, engine)
    cluster.wait_until_idle()
    run = create_run(
        cluster.stall.under, num_nodes=2, nproc_per_node=1, num_epochs=100_000, checkpoint_every_steps=20
    )
    engine.start(run)
    wait_until("a checkpoint", run.list_checkpoints, PATIENCE_S)
    wait_until("its status saying so", lambda: liveness.read_status(run).state == "running", PATIENCE_S)
    watched = Watched(run, cluster, engine, [rank_of(run, 0), rank_of(run, 1)])
    yield watched
    with contextlib.suppress(subprocess.CalledProcessError):
        cluster.ask("scancel", watched.job())
    wait_until("no process being left", lambda: not processes_of(run), PATIENCE_S)


def nodes(cluster: SlurmCluster) -> str:
    return cluster.ask("sinfo", "-h", "-N", "--format=%N %T %E")


def steps_on(cluster: SlurmCluster, node: str) -> list[int]:
    """Return the PIDs of the processes by which Slurm manages jobs on a node."""
    found = []
    for pid in cluster.processes_on(node):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).name() == "slurmstepd":
                found.append(pid)
    return found


def assert_only_what_was_observed(watched: Watched) -> None:
    said = watched.words()
    assert not [cause for cause in FALSE_CAUSES if cause in said], said


def test_node_0_cut_off_is_reported_its_ranks_end_and_nothing_of_it_writes_when_it_is_back(
    watched: Watched, cluster: SlurmCluster
) -> None:
    run = watched.run
    watched.began_at = time.monotonic()
    with cluster.cut_off("node1"):
        assert (
            watched.watch_until("the run waiting", lambda: watched.is_in("queued"), REPORTED_S) < REPORTED_S
        )
        ended_s = watched.watch_until(
            "no rank", lambda: not any(is_alive(rank.pid) for rank in watched.ranks), REPORTED_S
        )
        assert ended_s < REPORTED_S, "the lease of a node that reaches nothing"
        assert "Node 0 (node1, rank 0) has not reported" in watched.words()
        watched.watch_until(
            "Slurm giving the node up, and the job waiting",
            lambda: "node1 down" in nodes(cluster) and cluster.is_delayed(watched.job()),
            PATIENCE_S,
        )
        written = len(list(events.read_all(run.events)))
    srun = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "srun" and str(run.path) in " ".join(process.info["cmdline"] or ())
    ]
    # The delay of the restart is for this: a job that starts earlier is a duplicate on the node, which Slurm
    # then drains.
    watched.watch_until("the end of the first start", lambda: not steps_on(cluster, "node1"), CLEANUP_S)
    assert cluster.is_delayed(watched.job())
    start_now = cluster.without_delay(watched.job())

    def is_at_work() -> bool:
        start_now()
        return watched.is_in("running")

    watched.watch_until("the run at work again", is_at_work, RESTARTED_S)
    assert not [each for each in srun if is_alive(each.pid)], "an orphan"
    assert "Duplicate" not in nodes(cluster) and "drain" not in nodes(cluster)
    later = list(events.read_all(run.events))[written:]
    assert later[0]["kind"] == "warning" and later[0]["code"] == "restarted", "only the new start writes"
    assert "Node 0 (node1, rank 0) has not reported" in later[0]["message"]
    shown = [state for _, state in watched.states if state != "starting"]
    assert shown == ["running", "queued", "running"]
    assert_only_what_was_observed(watched)


def test_node_1_cut_off_is_reported_and_its_rank_ends_by_its_own_lease(
    watched: Watched, cluster: SlurmCluster
) -> None:
    watched.began_at = time.monotonic()
    with cluster.cut_off("node2"):
        watched.watch_until("the run waiting", lambda: watched.is_in("queued"), REPORTED_S)
        watched.watch_until("no rank", lambda: not any(is_alive(rank.pid) for rank in watched.ranks), 10.0)
        assert time.monotonic() - watched.began_at < REPORTED_S + 2.0
    assert [state for _, state in watched.states] == ["running", "queued"], "one state, no failure first"
    (error,) = [event for event in events.read_all(watched.run.events) if event["kind"] == "error"]
    assert error["code"] == "node_lost"
    assert "Node 1 (node2, rank 1) has not reported" in error["message"]
    assert_only_what_was_observed(watched)


def test_a_broken_interconnect_is_named_by_its_two_ends_and_the_run_is_queued_again(
    watched: Watched, cluster: SlurmCluster
) -> None:
    watched.began_at = time.monotonic()
    with cluster.without_cable("node1"):
        watched.watch_until("the run waiting", lambda: watched.is_in("queued"), 40.0)
    assert [state for _, state in watched.states] == ["running", "queued"]
    assert "node1 and node2 cannot reach each other" in watched.words()
    # At different lines, if the cable was pulled when one rank had begun the next step.
    assert re.search("at the same line|at different lines", watched.words()), watched.words()
    assert_only_what_was_observed(watched)
    watched.watch_until(
        "Slurm waiting to start it again",
        lambda: cluster.ask("squeue", "-h", "-j", watched.job(), "--format=%T").strip() == "PENDING",
        PATIENCE_S,
    )


def test_a_node_that_is_set_down_is_named_in_one_state(watched: Watched, cluster: SlurmCluster) -> None:
    watched.began_at = time.monotonic()
    cluster.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=power")
    watched.watch_until("the run waiting", lambda: watched.is_in("queued"), REPORTED_S)
    watched.watch_until("it staying so", lambda: time.monotonic() - watched.began_at > STAYS_S, PATIENCE_S)
    cluster.ask("scontrol", "update", "NodeName=node2", "State=RESUME")
    assert [state for _, state in watched.states] == ["running", "queued"]
    newest = [event for event in events.read_all(watched.run.events) if event["kind"] == "state"][-1]
    assert newest["state"] == "queued" and "node2 down (reason: power)" in newest["reason"]
    assert_only_what_was_observed(watched)
