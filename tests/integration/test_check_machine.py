"""The machine check with real jobs: on two CPU ranks, cancelled, killed, and with a hanging job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import END_TIMEOUT_S, REPOSITORY, START_TIMEOUT_S, wait_until
from trainers.check_machine.checks.bench import Bench
from trainers.check_machine.checks.cancelling import CancellableWait
from trainers.check_machine.checks.devices import CheckDevices
from trainers.check_machine.checks.training import DdpChecks
from trainers.contract.check_files import CheckFiles

# Upper bound that only failing tests reach. A shared machine can be many times slower than an idle one.
CHECK_TIMEOUT_S = 3_600.0
SECRET = "hunter2-7f3a9c"


class RunningProgram:
    """A running `python -m trainers.check_machine` and its output."""

    def __init__(self, runs_dir: Path, folder: Path) -> None:
        self.runs_dir = runs_dir
        self._said, self._errors = folder / "states.jsonl", folder / "errors.log"
        command = [sys.executable, "-m", "trainers.check_machine", "--runs-dir", str(runs_dir)]
        with self._said.open("wb") as stdout, self._errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "--device", "cpu", "--job-limit", "900", "--json"],
                cwd=REPOSITORY,
                env={**os.environ, "SOMETHING_SECRET": SECRET},
                stdout=stdout,
                stderr=stderr,
            )

    def state(self) -> dict[str, Any]:
        """Return the last printed state, or an empty state before the first."""
        text = self._said.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1].splitlines()
        return json.loads(lines[-1]) if lines else {"now": None, "findings": []}

    def story(self) -> str:
        """Return the last state and stderr, for assertion messages."""
        return f"{json.dumps(self.state(), indent=1)}\n{self._errors.read_text()}"

    def processes(self) -> list[psutil.Process]:
        """Return the live processes of its jobs, identified by the scratch folder on their command line."""
        return processes_at(CheckFiles(self.runs_dir).work)


def processes_at(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if any(str(folder) in word for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def program(tmp_path: Path) -> Iterator[RunningProgram]:
    running = RunningProgram(tmp_path / "runs", tmp_path)
    yield running
    running.process.kill()
    running.process.wait(timeout=END_TIMEOUT_S)
    wait_until("nothing of it being left", lambda: not running.processes(), END_TIMEOUT_S)


def test_on_two_cpu_ranks_all_holds_and_nothing_is_left(program: RunningProgram) -> None:
    wait_until("its end", lambda: program.process.poll() is not None, CHECK_TIMEOUT_S)
    assert program.process.returncode == 0, program.story()
    state = program.state()
    assert (state["state"], state["device_kind"], state["num_ranks"]) == ("done", "cpu", 2)
    found = {finding["id"]: finding["state"] for finding in state["findings"]}
    strategies = {"zero1", "zero2", "zero3", "tensor", "pipeline", "data_tensor"}
    expected = {"file_system", "disk", "all_reduce", "checkpoint", "kill", "resume", "stop", "exact"}
    expected |= {f"strategy_{name}" for name in strategies}
    assert {name for name, state in found.items() if state == "passed"} >= expected, program.story()
    assert all(finding["seconds"] > 0 for finding in state["findings"])

    files = CheckFiles(program.runs_dir)
    assert sorted(path.name for path in program.runs_dir.iterdir()) == [files.folder.name], "no run is made"
    report = files.report(state["check_id"])
    assert sorted(path.name for path in files.folder.iterdir()) == ["lock", report.name, files.results.name]
    text = report.read_text(encoding="utf-8")
    assert "Resume equals an uninterrupted run" in text and "torch: " in text
    for private in (SECRET, str(program.runs_dir), str(REPOSITORY), str(Path.home())):
        assert private not in text
    assert [check["check_id"] for check in files.read()] == [state["check_id"]]


def test_ctrl_c_at_the_beginning_leaves_nothing(program: RunningProgram) -> None:
    wait_until("a check", lambda: program.state()["now"] is not None, START_TIMEOUT_S)
    program.process.send_signal(signal.SIGINT)
    wait_until("its end", lambda: program.process.poll() is not None, END_TIMEOUT_S)
    assert program.process.returncode == 130, program.story()
    assert program.state()["state"] == "cancelled" and program.processes() == []
    assert not CheckFiles(program.runs_dir).work.exists()


def test_nothing_outlives_a_check_that_is_killed(program: RunningProgram) -> None:
    wait_until("torchrun", lambda: len(program.processes()) > 1, START_TIMEOUT_S)
    program.process.kill()
    wait_until("nothing being left", lambda: not program.processes(), END_TIMEOUT_S)


def test_a_job_that_hangs_is_ended_and_told(tmp_path: Path) -> None:
    on = CheckDevices(kind="cpu", num_ranks=2, description="2 CPU ranks")
    # No job reaches its tenth step in this time.
    bench = Bench(tmp_path, on, CancellableWait(), limit_s=0.5)
    checks = DdpChecks(bench)
    found = bench.run_guarded(checks.checkpoint)
    assert found.state == "failed"
    assert found.words == "The job hung and was killed: waited 0.5 s for step 10."
    assert found.hint
    assert processes_at(tmp_path) == [] and bench.job is None
    for check in (checks.kill, checks.resume, checks.stop, checks.exact):
        assert bench.run_guarded(check).state == "not_checked", "what follows says that it could not be seen"
