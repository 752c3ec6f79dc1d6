"""Tests with a full disk: the page reports it, and a run can still be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddp_gui.events.analysis import insights
from ddp_gui.launch import launcher
from tests.harness import create_run
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import process_handle
from trainers.engines import liveness


def test_full_disk_is_said_and_one_with_room_is_not(small_disk: Path) -> None:
    assert insights.check_disk(small_disk) == []
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    (insight,) = insights.check_disk(small_disk)
    assert insight.code == "disk_takes_nothing"
    assert insight.message.startswith("The disk is full: training continues, but nothing is saved.")


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (insight,) = insights.check_disk(tmp_path / "nowhere")
    assert "The folder of this run is no longer writable" in insight.message


@pytest.fixture
def supervisor() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a live process for use in a run's status."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.fixture
def run(tmp_path: Path, supervisor: subprocess.Popen[bytes]) -> Iterator[RunDirectory]:
    """Yield a running run that does not read its commands."""
    made = create_run(tmp_path)
    made.commands.mkdir()
    made.write_status(
        Status(
            state="running",
            handle=process_handle(supervisor.pid, psutil.Process(supervisor.pid).create_time()),
        )
    )
    lock = made.acquire_lock()
    yield made
    os.close(lock)


def test_command_on_a_full_disk_says_what_to_do(
    run: RunDirectory, supervisor: subprocess.Popen[bytes]
) -> None:
    refused = r"folder is not writable: .*, or stop it without"
    with pytest.raises(ValueError, match=refused):
        launcher.send(run, liveness.read_status(run), "checkpoint")
    with pytest.raises(ValueError, match=refused):
        launcher.stop(run, liveness.read_status(run), save=True)
    assert supervisor.poll() is None


def test_stop_without_saving_needs_no_disk(run: RunDirectory, supervisor: subprocess.Popen[bytes]) -> None:
    launcher.stop(run, liveness.read_status(run), save=False)
    assert supervisor.wait(60) == -signal.SIGTERM


def test_process_with_a_reused_number_is_let_be(
    run: RunDirectory, supervisor: subprocess.Popen[bytes]
) -> None:
    run.write_status(Status(state="running", handle=process_handle(supervisor.pid, 1.0)))
    with pytest.raises(ValueError, match="folder is not writable"):
        launcher.stop(run, liveness.read_status(run), save=False)
    assert supervisor.poll() is None
