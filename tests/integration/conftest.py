"""Fixtures of the integration tests: a reference run, forked ranks, and the engines of real clusters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.ssh_hosts import SshHosts
from tests.harness import REPOSITORY, Launcher, LiveRun, wait_until
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
    slurm.ask("scancel", "--user=root")
    slurm.wait_until_idle()


@pytest.fixture
def ssh_engine(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshEngine]:
    """Return the engine of two PCs, registered during a test. Waits until both are free afterwards."""
    made = engine_of(ssh_hosts.site_file, variables=ssh_hosts.environment)
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    yield made
    wait_until("both hosts being free", lambda: set(made.hosts.users().values()) == {""}, FREE_S)


@pytest.fixture(params=["slurm", "ssh"])
def two_nodes(request: pytest.FixtureRequest) -> SlurmEngine | SshEngine:
    """Return each engine for several machines in turn, with two nodes that share one physical machine."""
    name = "ssh_engine" if request.param == "ssh" else "engine"
    found: SlurmEngine | SshEngine = request.getfixturevalue(name)
    return found


class Ranks:
    """Client of `tests.integration.as_code_ranks`, which starts the ranks of runs and scripts."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.codes: list[int] = []

    def start(
        self,
        what: str,
        folder: Path,
        num_ranks: int,
        variables: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        *,
        may_fail: bool = False,
        quiet_s: float | None = None,
    ) -> str:
        """Start ranks with these environment variables, wait until they end, and return rank 0's output.

        Args:
            arguments: Those of a script.
            may_fail: Accept other exit codes than 0; they are in `codes`.
            quiet_s: Kill watched ranks that do nothing for this time.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        environment = {name: os.environ[name] for name in ("TRAINERS_CACHE",) if name in os.environ}
        environment |= variables or {}
        asked = {"what": what, "folder": str(folder), "num_ranks": num_ranks, "environment": environment}
        asked |= {"arguments": list(arguments), "quiet_s": quiet_s}  # type: ignore[dict-item]
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        codes = self.codes = json.loads(self._process.stdout.readline())
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
