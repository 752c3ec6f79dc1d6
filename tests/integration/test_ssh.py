"""Runs by SSH: hosts that are cut off or cannot start them, and hosts without a shared folder."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.begun import PATIENCE_S, assert_nothing_is_left, begun, losses_of, wait_for_the_end
from tests.cluster.ssh_hosts import SshHosts
from tests.cluster.victims import launcher_of
from tests.harness import ONE_THREAD, create_run, processes_of, run_to_end, torchrun_by_hand, wait_until
from trainers.contract import events, manifests
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines import liveness, registry
from trainers.engines.ssh.client import SshError
from trainers.engines.ssh.engine import SshEngine
from trainers.engines.ssh.register import engine_of
from trainers.engines.ssh.unshared import Rsync
from trainers.files import json_files

TRUE_STATE_S = 30.0
SLOW_S = 2.0
# ssh detects a broken connection after 9 s.
CUT_FOR_S = 11.0


@pytest.fixture
def run(ssh_engine: SshEngine, tmp_path: Path) -> Iterator[RunDirectory]:
    """Yield a training run on two hosts. Kills it afterwards."""
    made = begun(ssh_engine, tmp_path)
    yield made
    if liveness.is_alive(made):
        ssh_engine.kill(made, liveness.read_status(made))


def has_ended(run: RunDirectory) -> bool:
    recorded = status_file.read(run.status)
    return recorded is not None and recorded.state not in events.LIVE_STATES


def fail_power_of(hosts: SshHosts, name: str, run: RunDirectory) -> None:
    """Kill a run's processes on a host without a cable: the other host cannot observe it."""
    on_host = {process.pid for process in processes_of(run)}.intersection(hosts.processes_on(name))
    assert len(on_host) >= 3, "its launcher, torchrun and rank"
    for pid in on_host:
        psutil.Process(pid).kill()


def test_a_host_whose_power_fails_is_named_and_the_run_resumes_on_the_one_that_is_left(
    ssh_engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    name = "pc1"  # of node 0, which records the state: here the other one must
    run = begun(ssh_engine, tmp_path, checkpoint_every_steps=20)
    wait_until("a checkpoint", run.list_checkpoints, PATIENCE_S)
    with ssh_hosts.without_cable(name):
        fail_power_of(ssh_hosts, name, run)
        failed_at = time.monotonic()
        status = wait_for_the_end(run)
        assert time.monotonic() - failed_at <= TRUE_STATE_S
        assert_nothing_is_left(run, TRUE_STATE_S)
        assert status.state == "failed" and status.error is not None and f"({name}" in status.error
        (error,) = [event for event in events.read_all(run.events) if event["kind"] == "error"]
        assert error["code"] == "node_lost" and f"({name}" in error["message"]
        # A restart on both hosts is refused with the reason.
        (problem,) = ssh_engine.check(Config(num_nodes=2))
        assert problem.field == "num_nodes" and f"{name} " in problem.allowed
        assert ssh_engine.check(Config(num_nodes=1)) == []
        config = replace(run.read_config(), num_nodes=1, nproc_per_node=2)
        json_files.write_json_atomically(run.config, config.to_json())
        newest = max(losses_of(run))
        again = ssh_engine.start(run, run.list_checkpoints()[-1].step)
        again.wait_until_owned()
        assert {again.location} == {"pc1", "pc2"} - {name}
        wait_until("a step beyond the end", lambda: max(losses_of(run)) > newest, PATIENCE_S)
        ssh_engine.stop(run, liveness.read_status(run), save=False)
        again.wait_for_end()
        assert liveness.read_status(run).state == "stopped"


def test_a_run_is_resumed_in_the_moment_it_has_ended(run: RunDirectory, ssh_engine: SshEngine) -> None:
    """A launcher outlives its run briefly; here it is suspended to extend this time."""
    slow = launcher_of(run, 1)
    slow.suspend()
    timer = threading.Timer(SLOW_S, slow.resume)
    try:
        ssh_engine.stop(run, liveness.read_status(run), save=True)
        while not has_ended(run):
            assert ssh_engine.hosts.users()["pc2"] == run.run_id, "as it is remembered for a while"
        assert ssh_engine.check(run.read_config()) == [], "its hosts are promised to it"
        timer.start()
        again = ssh_engine.start(run, run.list_checkpoints()[-1].step)
        assert not timer.is_alive(), "it has waited for the launcher"
    finally:
        timer.cancel()
        with contextlib.suppress(psutil.NoSuchProcess):  # the launcher has exited as expected
            slow.resume()
    again.wait_until_owned()
    ssh_engine.kill(run, liveness.read_status(run))
    assert_nothing_is_left(run, TRUE_STATE_S)


def test_a_host_that_cannot_start_it_is_named_and_nothing_is_left_on_the_others(
    ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    site = tmp_path / "site.toml"
    said = ssh_hosts.site_file.read_text().replace('"pc2"', '{ name = "pc2", project = "/is/not/there" }')
    site.write_text(said)
    engine = engine_of(site, variables=ssh_hosts.environment)
    run = create_run(tmp_path, num_nodes=2, nproc_per_node=1)
    with pytest.raises(SshError, match="pc2: this host has no folder /is/not/there, in which"):
        engine.start(run)
    assert not processes_of(run) and set(engine.hosts.users().values()) == {""}


def test_values_with_signs_of_a_shell_start_no_command(ssh_engine: SshEngine, tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' $(touch boo) {run}; \"c\""
    run = create_run(folder, num_nodes=2, nproc_per_node=1, max_steps=2)
    launch = ssh_engine.start(run)
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
    assert f"pc2 has this project's code {second.code}, but pc1 has {first.code}" in problem
    assert list(runs.iterdir()) == []
    with ssh_hosts.without_cable("pc2"):
        _, gone = engine.report(runs)
        assert not gone.is_reachable and "pc2" in gone.problems[0]


@pytest.fixture
def engine(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshEngine]:
    """Yield the engine of two PCs without a shared folder. Waits until both are free afterwards."""
    made = made_anew(ssh_hosts, monkeypatch)
    yield made
    wait_until("both hosts being free", lambda: set(made.hosts.users().values()) == {""}, PATIENCE_S)


def made_anew(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> SshEngine:
    """Return the engine of a newly started page, which does not know any run yet."""
    made = engine_of(ssh_hosts.unshared_site_file, variables=ssh_hosts.environment)
    monkeypatch.setitem(registry._ENGINES, made.name, made)
    return made


def there(ssh_hosts: SshHosts, run: RunDirectory) -> RunDirectory:
    return RunDirectory(ssh_hosts.brought / "runs" / run.run_id)


def assert_all_is_back(ssh_hosts: SshHosts, run: RunDirectory) -> None:
    wait_until("no process being left there", lambda: not processes_of(there(ssh_hosts, run)), PATIENCE_S)
    assert_nothing_is_left(run)
    wait_until("nothing being left there", lambda: not there(ssh_hosts, run).path.exists(), PATIENCE_S)


def own_table(folder: Path) -> Path:
    path = folder / "my data" / "heights.csv"
    path.parent.mkdir()
    rows = (f"{number},{number % 7},{'tall' if number % 3 else 'small'}" for number in range(400))
    path.write_text("\n".join(["age,weight,height", *rows]))
    return path


def test_own_data_is_brought_and_the_losses_are_those_of_this_machine_to_the_last_bit(
    engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    values = {
        "dataset": "own",
        "data_path": str(own_table(tmp_path)),
        "model": "tabular_mlp",
        "label_column": "height",
    }
    values |= {"max_steps": 40, "num_epochs": 100, "checkpoint_every_steps": 15, "batch_size": 8}
    run = create_run(tmp_path / "runs", **values)
    ssh_hosts.leave_one_core_each()  # the rounding of a sum depends on the number of threads
    engine.start(run)
    status = wait_for_the_end(run)
    assert (status.state, status.exit_code, status.error) == ("finished", 0, None)
    assert_all_is_back(ssh_hosts, run)
    assert {"rank_0.log", "rank_1.log", "torchrun.log"} <= {path.name for path in run.logs.iterdir()}
    assert run.read_config().data_path == values["data_path"], "where it is here"
    assert len(list(ssh_hosts.brought.glob("data/*/heights.csv"))) == 1, "kept for the next run"
    assert run.list_checkpoints() and manifests.latest_intact(run) is not None
    here = create_run(tmp_path / "here", **values)
    exit_code, said = run_to_end(torchrun_by_hand(here), PATIENCE_S, ONE_THREAD)
    assert exit_code == 0, said
    assert losses_of(run) == losses_of(here) and len(losses_of(run)) > 1


def test_a_connection_that_breaks_loses_nothing_and_the_run_resumes_where_it_was_stopped(
    engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    run = begun(engine, tmp_path / "runs", num_nodes=1, nproc_per_node=2)
    start = status_file.read(run.status)
    assert start is not None and isinstance(start.handle, dict)
    name = str(start.handle["hosts"][0])
    with ssh_hosts.without_cable(name):
        cut_at = time.monotonic()
        wait_until("it being noticed", lambda: engine.describe(run, start).is_alive is None, PATIENCE_S)
        newest = losses_of(run)
        with pytest.raises(SshError, match="cannot be killed now"):
            engine.kill(run, liveness.read_status(run))
        engine.stop(run, liveness.read_status(run), save=True, reason="The lesson is over.")
        wait_until("a while", lambda: time.monotonic() - cut_at > CUT_FOR_S, PATIENCE_S)
        assert liveness.read_status(run).state == "running", "nobody says that it has failed"
        assert losses_of(run) == newest, "nothing can come"
    # The command is delivered after the reconnection and takes effect.
    assert wait_for_the_end(run).state == "stopped"
    assert_all_is_back(ssh_hosts, run)
    saved = manifests.latest_intact(run)
    assert saved is not None
    engine.start(run, saved.step)
    wait_until("a step after it", lambda: max(losses_of(run), default=0) > saved.step, PATIENCE_S)
    engine.kill(run, liveness.read_status(run))
    assert liveness.read_status(run).state == "stopped"
    assert_all_is_back(ssh_hosts, run)


def test_a_run_that_is_started_by_hand_and_ends_unseen_is_found_by_the_next_page(
    ssh_hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "runs" / "by-hand-1")
    command = [sys.executable, "-m", "trainers.engines.start", str(run.path), "--engine", "ssh"]
    command += ["--site", str(ssh_hosts.unshared_site_file), "--config", json.dumps({"max_steps": 300})]
    exit_code, said = run_to_end(command, PATIENCE_S, ssh_hosts.environment)
    assert (exit_code, said.splitlines()[-1:]) == (0, ["pc1"]), said
    wait_until("its end there", lambda: not processes_of(there(ssh_hosts, run)), PATIENCE_S)
    recorded = status_file.read(run.status)
    assert recorded is not None and recorded.state in events.LIVE_STATES, "nobody looked"
    made_anew(ssh_hosts, monkeypatch)
    assert wait_for_the_end(run).state == "finished"
    assert_all_is_back(ssh_hosts, run)
    assert max(losses_of(run)) == 300


def test_a_run_on_its_way_says_how_far_it_is_holds_its_host_and_can_be_stopped(
    engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "runs")
    other = create_run(tmp_path / "runs", num_nodes=1)
    send = Rsync.send

    def slowly(*arguments: Any, **options: Any) -> None:
        send(*arguments, "--bwlimit=300", **options)

    monkeypatch.setattr(Rsync, "send", slowly)
    # Remove the copied code.
    subprocess.run(["rm", "-rf", str(ssh_hosts.brought / "code")], check=True)
    engine.start(run)
    wait_until("its words", lambda: "Copying the code to pc1: " in describe_place(engine, run), PATIENCE_S)
    assert (
        liveness.read_status(run).state == "queued"
        and engine.describe(run, liveness.read_status(run)).is_waiting
    )
    engine.start(other)
    assert "pc2" in json.dumps(handle_of(other)), "the first host is taken"
    for each in (run, other):
        engine.stop(each, liveness.read_status(each), save=True)
        assert wait_for_the_end(each).state == "stopped"
        assert not there(ssh_hosts, each).path.exists()
    wait_until("no rsync being left", lambda: not rsyncs(), PATIENCE_S)


def test_a_folder_that_a_run_from_elsewhere_names_is_not_believed(
    engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    precious = ssh_hosts.folder / "precious"
    precious.mkdir()
    run = create_run(tmp_path / "runs")
    handle = {"tag": "made-up", "hosts": ["pc1"], "run_dir": str(precious)}
    status = Status(state="running", engine="ssh", handle=handle)
    run.write_status(status)
    assert engine.describe(run, status).is_alive is False and liveness.read_status(run).state == "lost"
    assert precious.is_dir()


def handle_of(run: RunDirectory) -> Any:
    recorded = status_file.read(run.status)
    assert recorded is not None
    return recorded.handle


def describe_place(engine: SshEngine, run: RunDirectory) -> str:
    return engine.describe(run, liveness.read_status(run)).reason or ""


def rsyncs() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "rsync" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
