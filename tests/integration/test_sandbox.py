"""A confined script tests each statement of docs/security.md about the sandbox."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import REPOSITORY, Launcher
from trainers.contract import code, rundir
from trainers.contract.config import parse
from trainers.engines.local import sandbox
from trainers.files.json_files import write_json_atomically

SCRIPT = REPOSITORY / "tests" / "scripts" / "attack.py"

pytestmark = pytest.mark.skipif(
    sandbox.obstacle() is not None, reason=f"no sandbox on this machine: {sandbox.obstacle()}"
)


@pytest.fixture
def listening() -> Iterator[int]:
    """Return a port of this machine with a server that answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


@pytest.fixture
def got(
    shared_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory, listening: int
) -> dict[str, Any]:
    """Return the result of each attempt of the script."""
    page, data = tmp_path_factory.mktemp("page"), tmp_path_factory.mktemp("data")
    (page / "accounts.json").write_text("the accounts")
    (data / "samples.txt").write_text("the samples")
    Path("/tmp/ddp-secret-of-the-page").write_text("a file of the page")
    other = rundir.create(shared_launcher.runs_dir, parse({"dataset": "digits", "model": "mlp"}))
    raw = {"model": "script", "dataset": "script", "script": "attack.py", "script_start": "python"}
    raw |= {"script_arguments": shlex.join([str(page), str(data), str(other.path), str(listening)])}

    def fill(made: rundir.RunDirectory) -> None:
        code.write(made.path, {"attack.py": SCRIPT.read_bytes()})
        write_json_atomically(made.path / sandbox.RECORD_FILE, {"readable": [str(data)]})

    run = rundir.create(shared_launcher.runs_dir, parse(raw), fill)
    live = shared_launcher.start_run(run, environment={"PAGE_SECRET": "1"})
    status = live.wait_for_end()
    Path("/tmp/ddp-secret-of-the-page").unlink()
    assert status.state == "finished", live.story()
    said = (run.logs / "torchrun.log").read_text()
    found: dict[str, Any] = json.loads(said.partition("GOT ")[2].splitlines()[0])
    assert json.loads((run.path / "config.json").read_text())["script"] == "attack.py"
    assert (data / "samples.txt").read_text() == "the samples"
    live.wait_for_no_process(10)
    return found


def refused(value: object) -> bool:
    """Return True if an attempt ended in an error of the system."""
    return isinstance(value, str) and value.startswith("refused")


def test_a_confined_script_reaches_only_what_it_may(got: dict[str, Any]) -> None:
    assert refused(got["network"]) and refused(got["other_network"])
    assert refused(got["accounts"]) and refused(got["other_run"])
    interpreter = Path(sys.base_prefix).resolve().parts
    assert refused(got["root_home"]) or all(name in interpreter for name in got["root_home"])
    assert got["home"] == [] or refused(got["home"])
    assert refused(got["processes"]), "no process leads out of the sandbox"
    assert got["environment"] == []
    assert got["temporary"] == [] and got["own_temporary"] is True, "its temporary folder is private"
    assert got["data"] == "the samples" and refused(got["write_data"])
    for trusted in ("config.json", "status.json", "confined.json", "code/attack.py", "code/new.py"):
        assert refused(got[f"write_{trusted}"]), trusted
    assert got["own_work"] == "written", "its working folder"


def test_two_ranks_train_inside_and_end_with_their_supervisor(shared_launcher: Launcher) -> None:
    entry = REPOSITORY / "tests" / "scripts" / "endless.py"
    copied = REPOSITORY / "trainers" / "watch" / "to_copy" / "watch.py"
    raw = {"model": "script", "dataset": "script", "script": "endless.py", "script_arguments": "asks"}

    def fill(made: rundir.RunDirectory) -> None:
        code.write(made.path, {"endless.py": entry.read_bytes(), "watch.py": copied.read_bytes()})
        write_json_atomically(made.path / sandbox.RECORD_FILE, {"readable": []})

    live = shared_launcher.start_run(rundir.create(shared_launcher.runs_dir, parse(raw), fill))
    live.wait_for_step(20)
    assert {rank["rank"] for rank in live.wait_for("ranks")["ranks"]} <= {0, 1}
    live.supervisor.kill()
    live.reap()
    live.wait_for_no_process(20)
