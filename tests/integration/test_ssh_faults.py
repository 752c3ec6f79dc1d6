"""Hosts of an SSH run that are cut off or cannot start it: correct states, no process remains."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.ssh_hosts import SshHosts
from tests.cluster.victims import launcher_of
from tests.harness import create_run, processes_of, wait_until
from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.ssh.client import SshError
from trainers.engines.ssh.engine import SshEngine
from trainers.engines.ssh.hosts import Start
from trainers.engines.ssh.register import engine_of
from trainers.engines.ssh.scripts import reap
from trainers.files import json_files

TRUE_STATE_S = 30.0
PATIENCE_S = 180.0
SLOW_S = 2.0


@pytest.fixture
def engine(ssh_engine: SshEngine) -> SshEngine:
    return ssh_engine


@pytest.fixture
def run(engine: SshEngine, tmp_path: Path) -> Iterator[RunDirectory]:
    """Yield a training run on two hosts. Kills it afterwards."""
    made = begun(engine, tmp_path)
    yield made
    if liveness.is_alive(made):
        engine.kill(made, liveness.read_status(made))


def begun(engine: SshEngine, runs_dir: Path, **values: Any) -> RunDirectory:
    """Return a run that has completed a step."""
    shape = {"num_nodes": 2, "nproc_per_node": 1, "num_epochs": 100_000}
    made = create_run(runs_dir, **shape | values)
    engine.start(made)
    wait_until(
        "a step", lambda: made.events.exists() and events.read(made.events, 0, ("step",))[0], PATIENCE_S
    )
    wait_until("its status saying so", lambda: liveness.read_status(made).state == "running", PATIENCE_S)
    return made


def wait_for_the_end(run: RunDirectory) -> None:
    wait_until("a true state", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)


def has_ended(run: RunDirectory) -> bool:
    recorded = status_file.read(run.status)
    return recorded is not None and recorded.state not in events.LIVE_STATES


def newest_step(run: RunDirectory) -> int:
    """Return the last step since the latest start."""
    steps: list[int] = []
    for event in events.read_all(run.events):
        if event["kind"] == "state" and event["state"] == "starting":
            steps.clear()
        if event["kind"] == "step":
            steps.append(event["step"])
    return max(steps, default=0)


def assert_nothing_is_left(run: RunDirectory) -> None:
    wait_until("no process being left", lambda: not processes_of(run), TRUE_STATE_S)
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"


def fail_power_of(hosts: SshHosts, name: str, run: RunDirectory) -> None:
    """Kill a run's processes on a host without a cable: the other host cannot observe it."""
    on_host = {process.pid for process in processes_of(run)}.intersection(hosts.processes_on(name))
    assert len(on_host) >= 3, "its launcher, torchrun and rank"
    for pid in on_host:
        psutil.Process(pid).kill()


def test_a_host_whose_power_fails_is_named_and_the_run_resumes_on_the_one_that_is_left(
    engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    name = "pc1"  # of node 0, which records the state: here the other one must
    run = begun(engine, tmp_path, checkpoint_every_steps=20)
    wait_until("a checkpoint", run.list_checkpoints, PATIENCE_S)
    with ssh_hosts.without_cable(name):
        fail_power_of(ssh_hosts, name, run)
        failed_at = time.monotonic()
        wait_for_the_end(run)
        assert time.monotonic() - failed_at <= TRUE_STATE_S
        assert_nothing_is_left(run)
        status = liveness.read_status(run)
        assert status.state == "failed" and status.error is not None and f"({name}" in status.error
        (error,) = [event for event in events.read_all(run.events) if event["kind"] == "error"]
        assert error["code"] == "node_lost" and f"({name}" in error["message"]
        # A restart on both hosts is refused with the reason.
        (problem,) = engine.check(Config(num_nodes=2))
        assert problem.field == "num_nodes" and f"{name} " in problem.allowed
        assert engine.check(Config(num_nodes=1)) == []
        config = replace(run.read_config(), num_nodes=1, nproc_per_node=2)
        json_files.write_json_atomically(run.config, config.to_json())
        saved = run.list_checkpoints()[-1].step
        again = engine.start(run, saved)
        again.wait_until_owned()
        assert {again.place} == {"pc1", "pc2"} - {name}
        wait_until("a step beyond it", lambda: newest_step(run) > saved, PATIENCE_S)
        engine.stop(run, liveness.read_status(run), save=False)
        again.wait_for_end()
        assert liveness.read_status(run).state == "stopped"


def test_a_cable_that_was_pulled_leaves_no_rank_at_work(
    run: RunDirectory, engine: SshEngine, ssh_hosts: SshHosts
) -> None:
    """All processes stay alive; they wait for messages that never arrive."""
    with ssh_hosts.without_cable("pc1"):
        status = liveness.read_status(run)
        wait_until("no answer", lambda: engine.describe(run, status).is_alive is None, PATIENCE_S)
        assert liveness.read_status(run).state == "running", "no answer is no failure"
    assert wait_until("an answer", lambda: engine.describe(run, status).is_alive, PATIENCE_S)
    engine.kill(run, liveness.read_status(run))
    assert liveness.read_status(run).state == "stopped"
    assert_nothing_is_left(run)


def test_the_reaper_ends_one_hosts_part_and_leaves_other_programs_alone(
    run: RunDirectory, engine: SshEngine
) -> None:
    """Both hosts share one process table in the test, so only the tag distinguishes their processes."""
    start = Start.of(liveness.read_status(run).handle)
    assert start is not None
    head, other = launcher_of(run, 0), launcher_of(run, 1)
    part = {other, *other.children(recursive=True)}
    said = engine.hosts.on_each({"pc2": reap(engine.hosts.by_name["pc2"], start.tag, 1)}, PATIENCE_S)
    assert int(str(said["pc2"])) >= len(part) >= 3
    wait_until("the end of its part", lambda: not part.intersection(processes_of(run)), PATIENCE_S)
    assert head in processes_of(run)
    assert engine.hosts.on_each({"pc2": reap(engine.hosts.by_name["pc2"], "none", 1)}, PATIENCE_S) == {
        "pc2": "0\n"
    }
    wait_for_the_end(run)
    assert_nothing_is_left(run)


def test_a_run_is_resumed_in_the_moment_it_has_ended(run: RunDirectory, engine: SshEngine) -> None:
    """A launcher outlives its run briefly; here it is suspended to extend this time."""
    slow = launcher_of(run, 1)
    slow.suspend()
    timer = threading.Timer(SLOW_S, slow.resume)
    try:
        engine.stop(run, liveness.read_status(run), save=True)
        while not has_ended(run):
            assert engine.hosts.users()["pc2"] == run.run_id, "as it is remembered for a while"
        assert engine.check(run.read_config()) == [], "its hosts are promised to it"
        timer.start()
        again = engine.start(run, run.list_checkpoints()[-1].step)
        assert not timer.is_alive(), "it has waited for the launcher"
    finally:
        timer.cancel()
        with contextlib.suppress(psutil.NoSuchProcess):  # the launcher has exited as expected
            slow.resume()
    again.wait_until_owned()
    engine.kill(run, liveness.read_status(run))
    assert_nothing_is_left(run)


def test_a_host_that_cannot_start_it_is_named_and_nothing_is_left_on_the_others(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    site = tmp_path / "site.toml"
    said = ssh_hosts.site_file.read_text().replace('"pc2"', '{ name = "pc2", project = "/is/not/there" }')
    site.write_text(said)
    engine = engine_of(site, variables=ssh_hosts.environment)
    run = create_run(tmp_path, num_nodes=2, nproc_per_node=1)
    with pytest.raises(SshError, match="pc2: there is no folder /is/not/there there"):
        engine.start(run)
    assert not processes_of(run) and set(engine.hosts.users().values()) == {""}


def test_values_with_signs_of_a_shell_start_no_command(engine: SshEngine, tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' $(touch boo) {run}; \"c\""
    run = create_run(folder, num_nodes=2, nproc_per_node=1, max_steps=2)
    launch = engine.start(run)
    launch.wait_until_owned()
    launch.wait_for_end()
    assert liveness.read_status(run).state == "finished"
    assert not list(tmp_path.rglob("boo"))


def test_what_does_not_fit_on_a_host_is_said_in_words(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "trainers").mkdir(parents=True)
    (other / "trainers" / "__init__.py").write_text("# another version\n")
    (runs := tmp_path / "runs").mkdir()
    site = tmp_path / "site.toml"
    said = ssh_hosts.site_file.read_text()
    site.write_text(said.replace('"pc2"', f'{{ name = "pc2", project = "{other}" }}'))
    engine = engine_of(site, variables=ssh_hosts.environment)
    first, second = engine.report(runs)
    assert (first.name, first.run_id, first.problems) == ("pc1", "", ())
    assert first.is_reachable and first.sees_runs and first.clock_off_s == 0.0 and first.num_cores
    assert first.torch is not None and first.code is not None
    (problem,) = second.problems
    assert f"pc2 has this project's code {second.code}, and pc1 {first.code}" in problem
    assert list(runs.iterdir()) == []
    with ssh_hosts.without_cable("pc2"):
        _, gone = engine.report(runs)
        assert not gone.is_reachable and "pc2" in gone.problems[0]
