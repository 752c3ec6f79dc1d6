"""From Start to the first step on two machines: the page, its engine alone, and the same job by hand.

    python -m benchmarks.clusters slurm|ssh [--rounds 5]

The page is asked as its Start button asks it. The engine alone submits, or starts its launchers. By hand
`sbatch` submits a script that starts torchrun by `srun`, or `ssh` starts torchrun on each host. The machines
are namespaces of this one, so its cores do all of the work. In turns: seconds of each, and as a share of
those by hand. Of the page's runs also how late an event of the first machine is where somebody watches: from
its time, which rank 0 has noted, to the message with it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from gradio_client import Client

from benchmarks.machine import Conditions, percentile
from benchmarks.pairs import Figures, column, in_turns, parser_of, ratios, tell
from tests.cluster.slurm_cluster import slurm_cluster
from tests.cluster.ssh_hosts import SshHosts, ssh_hosts
from tests.harness import REPOSITORY, SMALL, TORCHRUN, create_run, wait_until
from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import registry
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine
from trainers.engines.ssh.of_site import engine_of

FIRST_STEP_S = 120.0
ENDED_S = 120.0
NUM_STEPS = 100
SHAPE = {"num_nodes": 2, "nproc_per_node": 1, "max_steps": NUM_STEPS}
FIRST_PORT = 29_900
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


@dataclass(frozen=True, kw_only=True)
class Started:
    """A run; `page` is the address of one that can be watched."""

    run: RunDirectory
    page: str = ""


# Starts a run in a folder; the number is of no other.
Start = Callable[[Path, int], Started]


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, num_rounds=5)
    parser.add_argument("engine", choices=("slurm", "ssh"))
    options = parser.parse_args()
    conditions = Conditions.note()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cluster = _slurm if options.engine == "slurm" else _ssh
        with cluster(folder) as (starts, wait_until_free):
            ways = {name: _timed(start, wait_until_free, folder / "runs") for name, start in starts.items()}
            found = in_turns(ways, options.rounds)
    seconds = {name: column(found[name], "seconds") for name in found}
    late_ms = {
        f"event to page, {share}, ms": [
            round(1e3 * value, 1) for value in column(found["page"], f"late {share}")
        ]
        for share in ("p50", "p95")
    }
    shares = {f"{name} ÷ by hand": ratios(seconds[name], seconds["by hand"]) for name in ("page", "engine")}
    tell(
        {f"{name}, s": values for name, values in seconds.items()} | shares | late_ms,
        conditions,
        options.json,
    )


def _timed(start: Start, wait_until_free: Callable[[], None], runs_dir: Path) -> Callable[[], Figures]:
    numbers = iter(range(1_000))

    def once() -> Figures:
        began = time.monotonic()
        started = start(runs_dir, next(numbers))
        wait_until("a step", lambda: _has_step(started.run), FIRST_STEP_S)
        took_s = time.monotonic() - began
        late_s = _lateness_s(started)
        wait_until_free()
        shown = {"late p50": percentile(late_s, 0.5), "late p95": percentile(late_s, 0.95)} if late_s else {}
        return {"seconds": round(took_s, 3)} | {name: round(value, 3) for name, value in shown.items()}

    return once


def _lateness_s(started: Started) -> list[float]:
    """Watch a run to its end; return how old the newest event of each message was when that came."""
    if not started.page:
        return []
    came: list[tuple[int, float]] = []
    address = f"{started.page}/live/runs/{started.run.run_id}/stream"
    with httpx.stream("GET", address, timeout=ENDED_S) as answer:
        for line in answer.iter_lines():
            if line.startswith("id:"):
                came.append((int(line.partition(":")[2]), time.time()))
            if line == "event: end":
                break
    written = {event["seq"] + 1: event["time_unix_s"] for event in events.read_all(started.run.events)}
    # The first message is all that was there before.
    newer = [(cursor, at) for (before, _), (cursor, at) in itertools.pairwise(came) if cursor > before]
    return [at - written[cursor] for cursor, at in newer]


def _has_step(run: RunDirectory) -> bool:
    return run.events.exists() and bool(events.read(run.events, 0, ("step",))[0])


@contextlib.contextmanager
def _page(runs_dir: Path, variables: Mapping[str, str], *options: str) -> Iterator[Start]:
    with (
        page_driver.variables_set(variables),
        page_driver.serve(runs_dir, page_driver.NO_STANDBY, *options) as server,
    ):
        client = Client(server.address, verbose=False)

        def start(runs_dir: Path, number: int) -> Started:
            del number
            run_id = client.predict({**SMALL, **SHAPE}, api_name="/start_run")["run_id"]
            return Started(run=RunDirectory(runs_dir / run_id), page=server.address)

        yield start


@contextlib.contextmanager
def _slurm(folder: Path) -> Iterator[tuple[Mapping[str, Start], Callable[[], None]]]:
    (folder / "cluster").mkdir()
    with (
        slurm_cluster(folder / "cluster") as cluster,
        _page(folder / "runs", cluster.environment, "--engine", "slurm") as by_page,
    ):
        engine = SlurmEngine(Slurm(cluster.environment))
        registry.register(engine)

        def by_engine(runs_dir: Path, number: int) -> Started:
            del number
            run = create_run(runs_dir, **SHAPE)
            engine.submit(run, None, token=None)
            return Started(run=run)

        def by_hand(runs_dir: Path, number: int) -> Started:
            run = create_run(runs_dir, **SHAPE)
            script = folder / f"job{number}.sh"
            text = SCRIPT.format(
                log=folder / f"job{number}.log",
                project=REPOSITORY,
                torchrun=shlex.join(TORCHRUN),
                port=FIRST_PORT + number,
                worker=WORKER,
                run=run.path,
            )
            script.write_text(text)
            cluster.ask("sbatch", "--parsable", str(script))
            return Started(run=run)

        yield {"page": by_page, "engine": by_engine, "by hand": by_hand}, cluster.wait_until_idle


@contextlib.contextmanager
def _ssh(folder: Path) -> Iterator[tuple[Mapping[str, Start], Callable[[], None]]]:
    (folder / "hosts").mkdir()
    with (
        ssh_hosts(folder / "hosts") as hosts,
        _page(
            folder / "runs", hosts.environment, "--engine", "ssh", "--site", str(hosts.site_file)
        ) as by_page,
    ):
        engine = engine_of(hosts.site_file, variables=hosts.environment)
        registry.register(engine)
        by_hand: list[subprocess.Popen[bytes]] = []

        def by_engine(runs_dir: Path, number: int) -> Started:
            del number
            run = create_run(runs_dir, **SHAPE)
            engine.launch(run, None, token=None)
            return Started(run=run)

        def with_ssh(runs_dir: Path, number: int) -> Started:
            run = create_run(runs_dir, **SHAPE)
            by_hand.extend(_started_by_hand(hosts, run, number, folder))
            return Started(run=run)

        def wait_until_free() -> None:
            while by_hand:
                by_hand.pop().wait(ENDED_S)
            engine.hosts.forget()
            wait_until("free hosts", lambda: set(engine.hosts.users().values()) == {""}, ENDED_S)

        yield {"page": by_page, "engine": by_engine, "by hand": with_ssh}, wait_until_free


def _started_by_hand(
    hosts: SshHosts, run: RunDirectory, number: int, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    for node, host in enumerate(hosts.network.hosts):
        command = BY_HAND.format(
            project=REPOSITORY,
            interface="eth0",
            torchrun=shlex.join(TORCHRUN),
            node=node,
            head=hosts.network.hosts[0].address,
            port=FIRST_PORT + number,
            address=host.address,
            worker=WORKER,
            run=run.path,
        )
        with (folder / f"by_hand{node}.log").open("ab") as log:
            yield subprocess.Popen(
                ["ssh", "-F", str(hosts.config), host.name, command],
                env={**os.environ, **hosts.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


if __name__ == "__main__":
    main()
