"""Fixtures of the integration tests: a reference run, forked ranks, and the engines of real clusters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import slurm_cluster
from tests.cluster import ssh_hosts as ssh_hosts_module
from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.ssh_hosts import SshHosts
from tests.harness import REPOSITORY, Launcher, LiveRun, wait_until
from trainers.contract.rundir import RunDirectory
from trainers.engines import registry
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine
from trainers.engines.ssh.engine import SshEngine
from trainers.engines.ssh.register import engine_of

FREE_S = 180.0
REFERENCE_STEPS = 600
REFERENCE = {
    "num_epochs": 1000,
    "max_steps": REFERENCE_STEPS,
    "eval_every_steps": 100,
    "checkpoint_every_steps": 250,
}


@pytest.fixture(scope="session")
def finished_run(shared_launcher: Launcher) -> LiveRun:
    """Return an undisturbed, seeded 2-rank run of 600 steps."""
    live = shared_launcher.start(**REFERENCE)
    live.wait_for_end()
    return live


@pytest.fixture
def engine(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmEngine]:
    """Return the engine of a real cluster, registered during a test. Waits until the cluster is idle
    afterwards.
    """
    made = SlurmEngine(Slurm(slurm.environment))
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    yield made
    slurm.wait_until_idle()


@pytest.fixture
def ssh_engine(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshEngine]:
    """Return the engine of two PCs, registered during a test. Waits until both are free afterwards."""
    made = engine_of(ssh_hosts.site_file, variables=ssh_hosts.environment)
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    yield made
    wait_until("both hosts being free", lambda: set(made.hosts.users().values()) == {""}, FREE_S)


@dataclass(frozen=True, kw_only=True)
class TwoNodes:
    """The common interface of the engines for several machines.

    Attributes:
        variables: Environment of a page that uses the cluster.
        arguments: Options of such a page.
        names: Node names.
        leave_one_core_each: Restrict each rank to one core, however many its node has.
    """

    engine: SlurmEngine | SshEngine
    names: tuple[str, ...]
    small_disk: Path
    variables: Mapping[str, str]
    arguments: tuple[str, ...]
    leave_one_core_each: Callable[[], None]

    def launch(self, run: RunDirectory, resume_step: int | None = None) -> None:
        """Start a run, or submit it to the scheduler."""
        self.engine.start(run, resume_step)


@pytest.fixture(params=["slurm", "ssh"])
def two_nodes(request: pytest.FixtureRequest) -> TwoNodes:
    """Return each engine for several machines in turn, with two nodes that share one physical machine."""
    if request.param == "ssh":
        hosts: SshHosts = request.getfixturevalue("ssh_hosts")
        return TwoNodes(
            engine=request.getfixturevalue("ssh_engine"),
            names=ssh_hosts_module.PCS,
            small_disk=hosts.small_disk,
            variables=hosts.environment,
            arguments=("--engine", "ssh", "--site", str(hosts.site_file)),
            leave_one_core_each=hosts.leave_one_core_each,
        )
    cluster: SlurmCluster = request.getfixturevalue("slurm")
    return TwoNodes(
        engine=request.getfixturevalue("engine"),
        names=slurm_cluster.NODES,
        small_disk=cluster.small_disk,
        variables=cluster.environment,
        arguments=("--engine", "slurm"),
        leave_one_core_each=lambda: None,  # Slurm gives a job one core per rank
    )


class Ranks:
    """Client of `tests.integration.as_code_ranks`, which starts the ranks of runs and scripts."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(
        self,
        what: str,
        folder: Path,
        num_ranks: int,
        variables: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        *,
        may_fail: bool = False,
    ) -> str:
        """Start ranks with these environment variables, wait until they end, and return rank 0's output.

        Args:
            arguments: Those of a script.
            may_fail: Accept other exit codes than 0.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        environment = {name: os.environ[name] for name in ("TRAINERS_CACHE",) if name in os.environ}
        environment |= variables or {}
        asked = {"what": what, "folder": str(folder), "num_ranks": num_ranks, "environment": environment}
        asked["arguments"] = list(arguments)
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        codes = json.loads(self._process.stdout.readline())
        said = [(folder / f"{what}_{rank}.log").read_text() for rank in range(num_ranks)]
        assert may_fail or codes == [0] * num_ranks, "\n".join(text[-2000:] for text in said)
        return said[0]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Return a client that starts ranks from a process that has imported torch."""
    command = [sys.executable, "-m", "tests.integration.as_code_ranks"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Ranks(process)
