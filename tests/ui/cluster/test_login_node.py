"""A cluster's page on the user's own machine, started on the login node and reached with the user's ssh."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import expect

from tests.cluster import ssh_hosts
from tests.cluster.network import processes_on
from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import wait_until
from tests.ui.conftest import NewPage
from tools import page_driver
from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import REPOSITORY

PATIENCE_S = 60.0
LOGIN = "login"


@pytest.fixture
def project(slurm: SlurmCluster, tmp_path: Path) -> Path:
    """Return the project folder of the login node, where Slurm's commands are installed."""
    folder = tmp_path / "project there"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "app.py").symlink_to(REPOSITORY / "app.py")
    python = folder / ".venv" / "bin" / "python"
    # The fixture's commands enter the login node's namespace; on the node itself the plain commands are used.
    there = {"SLURM_CONF": slurm.environment["SLURM_CONF"], "HOME": str(tmp_path)}
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in there.items())
    python.write_text(f'#!/bin/sh\n{exports}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture
def own_ssh(slurm: SlurmCluster, tmp_path: Path) -> Iterator[str]:
    """Yield a PATH with an ssh that may log in to the login node."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    with ssh_hosts.login_by_ssh(folder, slurm.network.login) as path:
        yield path


def pages_on(slurm: SlurmCluster) -> list[psutil.Process]:
    """Return the pages on the login node without their children, which briefly have the same command line."""
    found = {}
    for pid in processes_on(slurm.network.login):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if "--until-silence" in process.cmdline() and process.name().startswith("python"):
                found[pid] = process, process.ppid()
    return [process for process, parent in found.values() if parent not in found]


def ssh_of(process: subprocess.Popen[str]) -> psutil.Process:
    (found,) = (each for each in psutil.Process(process.pid).children() if each.name() == "ssh")
    return found


@contextlib.contextmanager
def laptop(arguments: list[str], path: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run the command as on the user's machine; yield the process and its output."""
    process = subprocess.Popen(
        [sys.executable, "app.py", "--no-browser", "--engine", "slurm", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    try:
        yield process, said
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            said += process.communicate(timeout=PATIENCE_S)[0].splitlines()
        process.kill()


def test_a_run_is_started_from_here_and_goes_on_while_the_connection_is_cut(
    slurm: SlurmCluster, project: Path, own_ssh: str, new_page: NewPage, tmp_path: Path
) -> None:
    page, port, runs_dir = new_page(), page_driver.free_port(), tmp_path / "runs"
    address = f"http://127.0.0.1:{port}"
    options = ["--ssh", LOGIN, "--project", str(project), "--runs-dir", str(runs_dir), "--port", str(port)]
    with laptop(options, own_ssh) as (process, said):
        wait_until("the page", lambda: answers(address) or process.poll() is not None, PATIENCE_S)
        assert process.poll() is None, process.communicate()
        (first,) = pages_on(slurm)
        page.goto(address)
        expect(page.locator(".ddp-machine")).to_contain_text("cluster")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/run?id=*")
        run = RunDirectory(runs_dir / page.url.partition("?id=")[2])
        state = page.locator(".ddp-pill")
        expect(state).to_have_text("running")
        ssh_of(process).kill()
        wait_until("the page there ending", lambda: not first.is_running(), PATIENCE_S)
        wait_until("another page there", lambda: pages_on(slurm), PATIENCE_S)
        # The same window remains usable: Stop works, and the run ends normally.
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
        wait_until("the page", lambda: answers(address), PATIENCE_S)
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(state).to_have_text("stopped")
        assert run.list_checkpoints()
    assert process.returncode == 0
    assert any(line.startswith(f"The connection to {LOGIN} is lost") for line in said), said
    assert f"The connection to {LOGIN} is restored." in said
    wait_until("no page being left there", lambda: not pages_on(slurm), PATIENCE_S)
    slurm.wait_until_idle()


def test_what_the_login_node_lacks_is_said(own_ssh: str, tmp_path: Path) -> None:
    with laptop(["--ssh", LOGIN, "--project", str(tmp_path / "none"), "--port", "0"], own_ssh) as (
        process,
        said,
    ):
        process.wait(PATIENCE_S)
    assert process.returncode == 1
    assert any(f"there is no folder {tmp_path / 'none'} on the login node" in line for line in said), said


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/live/me", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
