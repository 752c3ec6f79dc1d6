"""The page on a login node: a run on two machines is started, followed, stopped and resumed through Slurm."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.cluster.slurm_cluster import SlurmCluster
from tests.harness import processes_of, run_to_end, wait_until
from tests.ui.conftest import assert_accessible
from tools import page_driver
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.slurm import client
from trainers.engines.slurm.engine import job_id_of

# The page retries the controller after 10 s.
ANSWERS_AGAIN_MS = 20_000


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "runs"


@pytest.fixture(scope="module")
def server(slurm: SlurmCluster, runs_dir: Path) -> Iterator[Server]:
    with (
        page_driver.variables_set(slurm.environment),
        page_driver.serve(runs_dir, page_driver.NO_STANDBY, "--engine", "slurm") as served,
    ):
        yield served


def test_a_run_of_two_machines(slurm: SlurmCluster, server: Server, page: Page, runs_dir: Path) -> None:
    page.goto(server.address)
    expect(page.locator(".ddp-machine")).to_have_text(
        "A cluster of 2 machines, each with at least 4 CPU cores."
    )
    page.get_by_label("Machines", exact=True).fill("2")
    ranks = page.get_by_label("CPU ranks (up to 4)")
    ranks.fill("1")
    ranks.blur()
    expect(page.locator(".ddp-equation")).to_contain_text("128")
    expect(page.locator("#command")).to_contain_text("trainers.engines.start")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    run = RunDirectory(runs_dir / page.url.partition("?id=")[2])
    state = page.locator(".ddp-pill")
    expect(state).to_have_text("running")
    expect(page.locator(".ddp-ranks-list li")).to_have_count(2)
    expect(page.locator(".ddp-ranks-list summary").nth(1)).to_contain_text("node 1 (node2)")
    assert "node1" in slurm.ask("squeue", "--noheader", "--format=%N").replace("[1-2]", "1")
    see_it_suspended(page, slurm, run)
    see_the_controller_fall_silent(page, slurm)
    page.get_by_text("This job as a script").click()
    expect(page.get_by_label("job script", exact=True)).to_contain_text("#SBATCH --nodes=2")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(state).to_have_text("stopped")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(state).to_have_text("running")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(state).to_have_text("stopped")
    assert run.list_checkpoints() and (run.path / "job.sh").is_file()
    slurm.wait_until_idle()
    # The script's own `sleep 1` may outlive it.
    wait_until("no process being left", lambda: not processes_of(run), 10.0)


def another_page(page: Page) -> Page:
    assert page.context.browser is not None
    return page.context.browser.new_page()


def see_it_suspended(page: Page, slurm: SlurmCluster, run: RunDirectory) -> None:
    """Check that each page shows that Slurm has suspended the run, and later resumed it."""
    job_id = job_id_of(liveness.status_file.read(run.status).handle) or ""
    slurm.ask("scontrol", "suspend", job_id)
    expect(page.locator(".ddp-pill")).to_have_text("suspended")
    expect(page.locator(".ddp-reason")).to_contain_text("Suspended by Slurm: its ranks are stopped")
    other = another_page(page)
    other.goto(page.url.partition("/run?")[0] + "/runs")
    row = other.locator(f"[data-run='{run.run_id}']")
    expect(row.locator(".ddp-pill")).to_have_text("suspended")
    expect(row.get_by_text("by Slurm")).to_be_visible()
    slurm.ask("scontrol", "resume", job_id)
    expect(page.locator(".ddp-pill")).to_have_text("running")
    expect(row.locator(".ddp-pill")).to_have_text("running")
    other.close()


def see_the_controller_fall_silent(page: Page, slurm: SlurmCluster) -> None:
    """Check that the run's page shows the missing controller, even after the Queue page showed it and was
    closed.
    """
    with silent_controller(slurm):
        other = another_page(page)
        other.goto(page.url.partition("/run?")[0] + "/queue")
        jobs = other.get_by_role("region", name="Your jobs in Slurm")
        expect(jobs.get_by_role("status")).to_contain_text("Not known since")
        other.close()
        expect(page.locator(".ddp-reason")).to_contain_text("Slurm has not answered since")
    expect(page.locator(".ddp-reason")).not_to_contain_text(
        "Slurm has not answered", timeout=ANSWERS_AGAIN_MS
    )


@contextlib.contextmanager
def silent_controller(slurm: SlurmCluster) -> Iterator[None]:
    """Make squeue fail during the block."""
    squeue = slurm.folder / "bin" / "squeue"
    program = squeue.read_text()
    squeue.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    try:
        yield
    finally:
        squeue.write_text(program)


def test_a_run_that_waits_says_why_and_is_cancelled(slurm: SlurmCluster, server: Server, page: Page) -> None:
    others = slurm.ask(
        "sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600"
    ).strip()
    page.goto(server.address)
    page.get_by_label("Machines", exact=True).fill("2")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    expect(page.locator(".ddp-pill")).to_have_text("queued")
    waiting = page.get_by_role("region", name="Waiting in the queue")
    number = str(int(others) + 1)
    expect(waiting).to_contain_text(f"In the cluster's queue: job {number}, place 1 of 1")
    expect(waiting).to_contain_text(client.reason_text("Resources"))
    run_page = page.url
    look_at_the_queue(page, slurm, others)
    page.goto(run_page)
    waiting.get_by_role("button", name="Remove from the queue").click()
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    expect(page.locator(".ddp-reason")).to_contain_text(
        "The run's Slurm job was cancelled before it started."
    )
    assert slurm.ask("squeue", "--noheader", "--format=%A").split() == [others]
    slurm.ask("scancel", others)
    slurm.wait_until_idle()


def look_at_the_queue(page: Page, slurm: SlurmCluster, others: str) -> None:
    """Check a waiting run and another job on the Queue page, with and without a controller."""
    page.get_by_role("link", name="The whole queue").click()
    jobs = page.get_by_role("region", name="Your jobs in Slurm")
    rows = jobs.get_by_role("row")
    expect(rows).to_have_count(3)
    other, own = jobs.locator(f"[data-job='{others}']"), rows.filter(has=page.get_by_role("link"))
    expect(other).to_contain_text("not from this page")
    expect(other).to_contain_text("running")
    for words in ("pending", "1st of 1 waiting", "2 nodes", "lab", client.reason_text("Resources")):
        expect(own).to_contain_text(words)
    assert_accessible(page)
    with silent_controller(slurm):
        expect(jobs.get_by_role("status")).to_contain_text("Not known since")
        expect(rows).to_have_count(3)  # the last known jobs remain
    expect(jobs.get_by_role("status")).to_have_count(0)


def test_without_a_cluster_the_page_says_why_it_ends(slurm: SlurmCluster, tmp_path: Path) -> None:
    del slurm  # its commands are installed
    command = [sys.executable, "app.py", "--no-browser", "--runs-dir", str(tmp_path / "runs")]
    environment = {"SLURM_CONF": str(tmp_path / "there is none")}
    code, said = run_to_end([*command, "--engine", "slurm"], 120.0, environment)
    assert code != 0 and "--engine slurm needs a login node on which Slurm's commands work: " in said
