"""From the start to the first step on two machines: an engine, and the same job by hand.

    python -m benchmarks.clusters slurm|ssh [--rounds 5]

Slurm: the engine submits, and `sbatch` submits a script that starts torchrun by `srun`. SSH: the engine
starts its launchers, and `ssh` starts torchrun on each host. The machines are namespaces of this one, so its
cores do all of the work. In turns: seconds of each, and the engine's as a share of those by hand.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.machine import Conditions
from benchmarks.pairs import Figures, column, in_turns, parser_of, ratios, tell
from tests.cluster.slurm_cluster import slurm_cluster
from tests.cluster.ssh_hosts import ssh_hosts
from tests.harness import REPOSITORY, TORCHRUN, create_run, wait_until
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import registry
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine
from trainers.engines.ssh.engine import SshEngine
from trainers.engines.ssh.of_site import engine_of

FIRST_STEP_S = 120.0
NUM_STEPS = 60
SHAPE = {"num_nodes": 2, "nproc_per_node": 1, "max_steps": NUM_STEPS}
WORKER = "--nproc-per-node 1 -m trainers.worker"
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --output={log}
export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
cd {project}
srun bash -c '{torchrun} --nnodes 2 --node-rank $SLURM_NODEID --master-addr $HEAD --master-port {port} \\
  --local-addr $(hostname) {worker} {run}'
"""
BY_HAND = (
    "cd {project} && GLOO_SOCKET_IFNAME={interface} {torchrun} --nnodes 2 --node-rank {node} "
    "--master-addr {head} --master-port {port} --local-addr {address} {worker} {run}"
)
# Starts a run, waits for its first step and then for its end; returns the seconds to the first step.
Way = Callable[[RunDirectory, int], float]


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, num_rounds=5)
    parser.add_argument("engine", choices=("slurm", "ssh"))
    options = parser.parse_args()
    conditions = Conditions.note()
    with tempfile.TemporaryDirectory() as folder:
        cluster = _slurm if options.engine == "slurm" else _ssh
        with cluster(Path(folder)) as (by_engine, by_hand):
            ways = {"engine": _timed(by_engine, Path(folder)), "by hand": _timed(by_hand, Path(folder))}
            found = in_turns(ways, options.rounds)
    engine, hand = column(found["engine"], "seconds"), column(found["by hand"], "seconds")
    figures = {"engine, s": engine, "by hand, s": hand, "engine as a share": ratios(engine, hand)}
    tell(figures, conditions, options.json)


def _timed(way: Way, folder: Path) -> Callable[[], Figures]:
    numbers = iter(range(1_000))

    def once() -> Figures:
        run = create_run(folder / "runs", **SHAPE)
        return {"seconds": round(way(run, next(numbers)), 3)}

    return once


def _until_first_step(run: RunDirectory, started_at: float) -> float:
    wait_until(
        "a step", lambda: run.events.exists() and events.read(run.events, 0, ("step",))[0], FIRST_STEP_S
    )
    return time.monotonic() - started_at


@contextlib.contextmanager
def _slurm(folder: Path) -> Iterator[tuple[Way, Way]]:
    (folder / "cluster").mkdir()
    with slurm_cluster(folder / "cluster") as cluster:
        engine = SlurmEngine(Slurm(cluster.environment))
        registry.register(engine)

        def by_engine(run: RunDirectory, number: int) -> float:
            del number
            started_at = time.monotonic()
            engine.submit(run, None, token=None)
            took_s = _until_first_step(run, started_at)
            cluster.wait_until_idle()
            return took_s

        def by_hand(run: RunDirectory, number: int) -> float:
            script = folder / f"job{number}.sh"
            text = SCRIPT.format(
                log=folder / f"job{number}.log",
                project=REPOSITORY,
                torchrun=shlex.join(TORCHRUN),
                port=29_900 + number,
                worker=WORKER,
                run=run.path,
            )
            script.write_text(text)
            started_at = time.monotonic()
            cluster.ask("sbatch", "--parsable", str(script))
            took_s = _until_first_step(run, started_at)
            cluster.wait_until_idle()
            return took_s

        yield by_engine, by_hand


@contextlib.contextmanager
def _ssh(folder: Path) -> Iterator[tuple[Way, Way]]:
    (folder / "hosts").mkdir()
    with ssh_hosts(folder / "hosts") as hosts:
        engine = engine_of(hosts.site_file, variables=hosts.environment)
        assert isinstance(engine, SshEngine)
        registry.register(engine)

        def by_engine(run: RunDirectory, number: int) -> float:
            del number
            started_at = time.monotonic()
            launch = engine.launch(run, None, token=None)
            took_s = _until_first_step(run, started_at)
            launch.wait_for_end()
            return took_s

        def by_hand(run: RunDirectory, number: int) -> float:
            started_at = time.monotonic()
            started = []
            for node, host in enumerate(hosts.network.hosts):
                command = BY_HAND.format(
                    project=REPOSITORY,
                    interface="eth0",
                    torchrun=shlex.join(TORCHRUN),
                    node=node,
                    head=hosts.network.hosts[0].address,
                    port=29_900 + number,
                    address=host.address,
                    worker=WORKER,
                    run=run.path,
                )
                with (folder / f"by_hand{node}.log").open("ab") as log:
                    asked = ["ssh", "-F", str(hosts.config), host.name, command]
                    variables = {**os.environ, **hosts.environment}
                    started.append(
                        subprocess.Popen(
                            asked, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                        )
                    )
            took_s = _until_first_step(run, started_at)
            for process in started:
                process.wait(FIRST_STEP_S)
            return took_s

        yield by_engine, by_hand


if __name__ == "__main__":
    main()
