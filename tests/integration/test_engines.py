"""The contract of every engine: local, Slurm and SSH with two nodes, and SSH without a shared folder."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.begun import told, wait_for_a_step
from tests.cluster.slurm_cluster import SlurmCluster
from tests.cluster.ssh_hosts import SshHosts
from tests.cluster.victims import launcher_of
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import status as status_file
from trainers.contract import tickets
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import Grant, Ticket
from trainers.engines import liveness, registry
from trainers.engines.base import Engine, Launch
from trainers.engines.local.engine import LocalEngine
from trainers.engines.slurm.client import Slurm
from trainers.engines.slurm.engine import SlurmEngine, job_id_of
from trainers.engines.ssh.register import engine_of

END_S = 180.0
FOR_EVER = {"num_epochs": 100_000}


@dataclass(frozen=True, kw_only=True)
class Place:
    """An engine, and a function that makes it lose a run as if its machine had died."""

    engine: Engine
    lose: Callable[[RunDirectory], None]
    runs_dir: Path
    # Maps a run to the folder that its processes use, where that differs.
    run_there: Callable[[RunDirectory], RunDirectory] = lambda run: run
    program: str = "torchrun"
    shape: Mapping[str, int] = field(default_factory=dict)

    def start(self, **values: Any) -> tuple[RunDirectory, Launch]:
        run = create_run(self.runs_dir, **self.shape, **values)
        now = time.time()
        grant = Grant(token=uuid.uuid4().hex, granted_unix_s=now, gpus=())
        ticket = Ticket(person="", kind="cpu", num_ranks=2, asked_unix_s=now, grant=grant)
        tickets.write_queued(run, ticket)
        launch = self.engine.start(run, grant=grant)
        launch.wait_until_owned()
        return run, launch


def kill_supervisor(run: RunDirectory) -> None:
    pid = liveness.read_status(run).pid
    assert pid is not None
    psutil.Process(pid).kill()


def kill_head(run: RunDirectory) -> None:
    """Kill the launcher that keeps the status, as when its node loses power."""
    launcher_of(run, 0).kill()


def kill_together(processes: Iterable[psutil.Process]) -> None:
    """Kill processes so that none can observe and report the end of another."""
    stopped = list(processes)
    for process in stopped:
        process.suspend()
    for process in stopped[::-1]:
        process.kill()


def place_of(name: str, runs_dir: Path, request: pytest.FixtureRequest) -> Place:
    if name == "local":
        return Place(engine=LocalEngine(), lose=kill_supervisor, runs_dir=runs_dir)
    if name == "ssh_unshared":
        unshared: SshHosts = request.getfixturevalue("ssh_hosts")

        def there(run: RunDirectory) -> RunDirectory:
            return RunDirectory(unshared.brought / "runs" / run.run_id)

        return Place(
            engine=engine_of(unshared.unshared_site_file, variables=unshared.environment),
            lose=lambda run: kill_head(there(run)),
            runs_dir=runs_dir,
            run_there=there,
            program="trainers.engines.start",
        )
    if name == "ssh":
        hosts: SshHosts = request.getfixturevalue("ssh_hosts")
        return Place(
            engine=engine_of(hosts.site_file, variables=hosts.environment),
            lose=lambda run: kill_together(launcher_of(run, node) for node in (0, 1)),
            runs_dir=runs_dir,
            program="trainers.engines.start",
            shape={"num_nodes": 2, "nproc_per_node": 1},
        )
    cluster: SlurmCluster = request.getfixturevalue("slurm")
    slurm = Slurm(cluster.environment)

    def kill_job(run: RunDirectory) -> None:
        """Also kill the batch script: otherwise Slurm would restart the run."""
        job_id = job_id_of(liveness.read_status(run).handle)
        assert job_id is not None
        parts = [launcher_of(run, node) for node in (0, 1)]
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or [])
            if f"/job{int(job_id):05}/slurm_script" in command and str(cluster.folder) in command:
                parts.append(process)
        assert len(parts) == 3
        kill_together(parts)

    return Place(
        engine=SlurmEngine(slurm),
        lose=kill_job,
        runs_dir=runs_dir,
        program="trainers.engines.start",
        shape={"num_nodes": 2, "nproc_per_node": 1},
    )


@pytest.fixture(params=["local", "slurm", "ssh", "ssh_unshared"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = place_of(request.param, tmp_path, request)
    monkeypatch.setitem(registry._ENGINES, made.engine.name, made.engine)
    yield made
    for path in tmp_path.iterdir():
        for process in processes_of(RunDirectory(path)) if path.is_dir() else []:
            process.kill()


def state_at_the_end(place: Place, run: RunDirectory, launch: Launch) -> str:
    launch.wait_for_end()
    wait_until("no process being left", lambda: not processes_of(place.run_there(run)), END_S)
    return liveness.read_status(run).state


def test_a_run_is_started_followed_and_stopped_with_a_save(place: Place) -> None:
    run, launch = place.start(**FOR_EVER)
    assert not run.queued.exists() or liveness.read_status(run).state == "starting"
    wait_for_a_step(run)
    recorded = status_file.read(run.status)
    assert recorded is not None and recorded.engine == place.engine.name and recorded.handle is not None
    assert recorded.last_seen_unix_s is not None and time.time() - recorded.last_seen_unix_s < END_S
    assert place.engine.describe(run, recorded).is_alive and liveness.is_alive(run)
    assert liveness.engine_for(liveness.read_status(run)) is place.engine
    command_id = place.engine.stop(run, liveness.read_status(run), save=True, reason="The lesson is over.")
    assert state_at_the_end(place, run, launch) == "stopped"
    assert command_id in {event["id"] for event in told(run, "command")}
    assert run.list_checkpoints() and not place.engine.describe(run, recorded).is_alive
    assert not run.queued.exists()


# Runs of test_run.py, test_two_nodes.py and test_ssh.py end by themselves; the last also kills one.
@pytest.mark.parametrize("place", ["local", "slurm"], indirect=True)
def test_a_run_is_killed_and_its_status_says_so_at_once(place: Place) -> None:
    run, launch = place.start(**FOR_EVER)
    wait_for_a_step(run)
    place.engine.kill(run, liveness.read_status(run))
    assert liveness.read_status(run).state == "stopped"
    assert state_at_the_end(place, run, launch) == "stopped"


# On two nodes: test_two_nodes.py.
@pytest.mark.parametrize("place", ["local", "ssh_unshared"], indirect=True)
def test_a_rank_that_raises_fails_the_run_and_its_log_says_why(place: Place) -> None:
    run, launch = place.start(dataset="own", data_path=str(place.runs_dir / "is not there.csv"))
    assert state_at_the_end(place, run, launch) == "failed"
    status = liveness.read_status(run)
    assert status.error and status.exit_code not in (0, None)
    assert any("is not there.csv" in path.read_text() for path in run.logs.glob("rank_*.log"))


def test_a_run_whose_engine_has_lost_it_is_lost(place: Place) -> None:
    run, launch = place.start(**FOR_EVER)
    wait_for_a_step(run)
    place.lose(run)
    assert state_at_the_end(place, run, launch) == "lost"
    assert liveness.read_status(run).error


def test_more_nodes_than_there_are_is_refused_in_words(place: Place) -> None:
    most = place.engine.capacity().num_nodes
    assert place.engine.check(Config(num_nodes=most)) == []
    (problem,) = place.engine.check(Config(num_nodes=most + 1))
    assert problem.field == "num_nodes" and problem.value == most + 1 and str(most) in problem.allowed


def test_its_command_is_one_that_can_be_typed(place: Place) -> None:
    command = place.engine.command(Config(nproc_per_node=2), "runs/x-1", 70)
    assert any(Path(word).name == place.program for word in command) and command[-2:] == ["--resume", "70"]


def test_a_run_of_an_engine_that_is_not_here_is_lost_and_says_so(tmp_path: Path) -> None:
    run = create_run(tmp_path)
    run.write_status(status_file.Status(state="running", engine="moon", handle="crater 7"))
    status = liveness.read_status(run)
    assert status.state == "lost" and status.error is not None and "engine moon" in status.error
    with pytest.raises(registry.UnknownEngineError, match=r"allowed: .*local"):
        registry.get_engine(status.engine)


def test_a_status_of_schema_1_is_a_local_run(tmp_path: Path) -> None:
    run = create_run(tmp_path)
    old = '{"schema_version": 1, "state": "finished", "pid": 7, "pid_start_time": 1.5, "exit_code": 0}'
    run.status.write_text(old)
    status = liveness.read_status(run)
    assert (status.state, status.engine, status.exit_code) == ("finished", "local", 0)
    assert status.handle == {"pid": 7, "pid_start_time": 1.5} and status.pid == 7
