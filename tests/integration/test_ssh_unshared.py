"""A host without a shared folder: a run's inputs are copied to it, and all its outputs are copied back."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.ssh_hosts import SshHosts
from tests.harness import ONE_THREAD, create_run, processes_of, wait_until
from trainers.contract import events, manifests
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines import liveness, registry
from trainers.engines.ssh.client import SshError
from trainers.engines.ssh.engine import SshEngine
from trainers.engines.ssh.register import engine_of
from trainers.engines.ssh.unshared import Rsync
from trainers.files.plain_files import REPOSITORY

PATIENCE_S = 180.0
# ssh detects a broken connection after 9 s.
CUT_FOR_S = 11.0


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


def steps_of(run: RunDirectory) -> list[dict[str, Any]]:
    return events.read(run.events, 0, ("step",))[0] if run.events.exists() else []


def losses_of(run: RunDirectory) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in steps_of(run)}


def wait_for_the_end(run: RunDirectory) -> str:
    wait_until("its end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, PATIENCE_S)
    return liveness.read_status(run).state


def assert_all_is_back(ssh_hosts: SshHosts, run: RunDirectory) -> None:
    wait_until("no process being left", lambda: not processes_of(there(ssh_hosts, run)), PATIENCE_S)
    wait_until("nothing being left there", lambda: not there(ssh_hosts, run).path.exists(), PATIENCE_S)
    numbers = [event["seq"] for event in events.read_all(run.events)]
    assert numbers == list(range(len(numbers))), "events without a gap"


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
    assert wait_for_the_end(run) == "finished", liveness.read_status(run).error
    assert_all_is_back(ssh_hosts, run)
    assert run.read_config().data_path == values["data_path"], "where it is here"
    assert len(list(ssh_hosts.brought.glob("data/*/heights.csv"))) == 1, "kept for the next run"
    assert run.list_checkpoints() and manifests.newest_whole(run) is not None
    here = create_run(tmp_path / "here", **values)
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "trainers.worker", str(here.path)),
        ],
        cwd=REPOSITORY,
        env=os.environ | ONE_THREAD,
        check=True,
        capture_output=True,
    )
    assert losses_of(run) == losses_of(here) and len(losses_of(run)) > 1


def test_a_connection_that_breaks_loses_nothing_and_the_run_resumes_where_it_was_stopped(
    engine: SshEngine, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "runs", num_epochs=100_000)
    engine.start(run)
    wait_until("a step", lambda: steps_of(run), PATIENCE_S)
    wait_until("its status saying so", lambda: liveness.read_status(run).state == "running", PATIENCE_S)
    start = status_file.read(run.status)
    assert start is not None and isinstance(start.handle, dict)
    name = str(start.handle["hosts"][0])
    with ssh_hosts.without_cable(name):
        cut_at = time.monotonic()
        wait_until("it being noticed", lambda: engine.describe(run, start).is_alive is None, PATIENCE_S)
        newest = losses_of(run)
        with pytest.raises(SshError, match="cannot be killed at the moment"):
            engine.kill(run, liveness.read_status(run))
        engine.stop(run, liveness.read_status(run), save=True, why="The lesson is over.")
        wait_until("a while", lambda: time.monotonic() - cut_at > CUT_FOR_S, PATIENCE_S)
        assert liveness.read_status(run).state == "running", "nobody says that it has failed"
        assert losses_of(run) == newest, "nothing can come"
    # The command is delivered after the reconnection and takes effect.
    assert wait_for_the_end(run) == "stopped"
    assert_all_is_back(ssh_hosts, run)
    saved = manifests.newest_whole(run)
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
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**environment_of(), **ssh_hosts.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "pc1"), done.stderr
    wait_until("its end there", lambda: not processes_of(there(ssh_hosts, run)), PATIENCE_S)
    recorded = status_file.read(run.status)
    assert recorded is not None and recorded.state in events.LIVE_STATES, "nobody looked"
    made_anew(ssh_hosts, monkeypatch)
    assert wait_for_the_end(run) == "finished"
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
    wait_until("its words", lambda: "Copying the code to pc1: " in words_of(engine, run), PATIENCE_S)
    assert (
        liveness.read_status(run).state == "queued"
        and engine.describe(run, liveness.read_status(run)).is_waiting
    )
    engine.start(other)
    assert "pc2" in json.dumps(handle_of(other)), "the first host is taken"
    for each in (run, other):
        engine.stop(each, liveness.read_status(each), save=True)
        assert wait_for_the_end(each) == "stopped"
        assert not there(ssh_hosts, each).path.exists()
    wait_until("no rsync being left", lambda: not rsyncs(), PATIENCE_S)


def test_a_host_without_what_is_needed_fails_the_run_with_its_name(
    ssh_hosts: SshHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.toml"
    text = ssh_hosts.unshared_site_file.read_text()
    site.write_text(text.replace('"pc1", "pc2"', '{ name = "pc1", python = "/opt/none" }'))
    engine = engine_of(site, variables=ssh_hosts.environment)
    monkeypatch.setitem(registry._ENGINES, engine.name, engine)
    run = create_run(tmp_path / "runs")
    engine.start(run)
    assert wait_for_the_end(run) == "failed"
    assert "pc1: there is no /opt/none there" in str(liveness.read_status(run).error)
    assert_all_is_back(ssh_hosts, run)


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


def words_of(engine: SshEngine, run: RunDirectory) -> str:
    return engine.describe(run, liveness.read_status(run)).why or ""


def rsyncs() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "rsync" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def environment_of() -> dict[str, str]:
    return dict(psutil.Process().environ())
