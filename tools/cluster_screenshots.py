"""Take the screenshots of pages with a Slurm cluster and with SSH hosts, simulated by network namespaces.

    python -m tools.cluster_screenshots

Replaces the images in docs/images, which show parts of pages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.cluster.slurm_cluster import WITH_GPUS, slurm_cluster
from tests.cluster.ssh_hosts import ssh_hosts
from tools import page_driver
from tools.screenshots import REPOSITORY

# Fits one row per machine and its charts.
HIGH = 1700
TRAINS_FOR_MS = 8_000
SETTLES_MS = 2_500
OF_ALL_NODES = ("--nodes=2", "--exclusive")
NO_TOUR = """localStorage.setItem("ddp:tour", '"seen"')"""


def take(
    browser: Browser,
    name: str,
    address: str,
    wanted: str,
    part: str,
    *,
    height: int = 900,
    prepare: Callable[[Page], None] | None = None,
) -> None:
    """Take a screenshot of a part of a page, by its selector, when the page contains the wanted text."""
    page = browser.new_page(viewport={"width": 1440, "height": height})
    page.set_default_timeout(page_driver.PAGE_TIMEOUT_MS)
    page.add_init_script(NO_TOUR)
    page.goto(address)
    if prepare is not None:
        prepare(page)
    expect(page.locator("body")).to_contain_text(wanted)
    page.wait_for_timeout(SETTLES_MS)
    path = REPOSITORY / "docs" / "images" / f"{name}.png"
    page.locator(part).first.screenshot(path=path)
    print(path, flush=True)
    page.close()


def main() -> None:
    """Take all screenshots."""
    expect.set_options(timeout=page_driver.PAGE_TIMEOUT_MS)
    with tempfile.TemporaryDirectory() as scratch, page_driver.open_browser() as browser:
        _of_slurm(browser, Path(scratch))
        _of_hosts(browser, Path(scratch))


def _of_slurm(browser: Browser, scratch: Path) -> None:
    for kind in ("partitions", "nodes"):
        (scratch / kind).mkdir()
    options = (page_driver.NO_STANDBY, "--engine", "slurm")
    with (
        slurm_cluster(scratch / "partitions", WITH_GPUS) as cluster,
        page_driver.variables_set(cluster.environment),
        page_driver.serve(scratch / "none", *options) as server,
    ):
        take(browser, "where", server.address, "GPU type", "#where", height=1100, prepare=_choose_gpus)
    with (
        slurm_cluster(scratch / "nodes") as cluster,
        page_driver.variables_set(cluster.environment),
        page_driver.serve(scratch / "slurm", *options) as server,
    ):
        page = page_driver.open_page(browser, server.address)
        _fill(page, "Machines", "2")
        expect(page.locator(".ddp-equation")).to_have_attribute("data-ranks", "4")
        _fill(page, "Epochs", "1000")
        expect(page.locator("#command")).to_contain_text("1000")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/run?id=*")
        expect(page.locator(".ddp-pill")).to_have_text("running")
        page.wait_for_timeout(TRAINS_FOR_MS)
        take(browser, "run-nodes", page.url, "node1", ".ddp-ranks-list", height=HIGH)
        cluster.ask("sbatch", "--job-name=by-hand", *OF_ALL_NODES, "--output=/dev/null", "--wrap=sleep 600")
        queue = f"{server.address}/queue"
        take(browser, "queue-slurm", queue, "not from this page", "section:has-text('Your jobs in Slurm')")
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.locator(".ddp-pill")).to_have_text("stopped")


def _choose_gpus(page: Page) -> None:
    """Choose the partition with GPUs."""
    page.get_by_role("combobox", name="Partition").click()
    page.get_by_role("option").filter(has_text="gpu:").first.click()
    expect(page.locator(".ddp-machine")).to_contain_text("3 GPUs")


def _fill(page: Page, label: str, value: str) -> None:
    field = page.get_by_label(label, exact=True)
    field.fill(value)
    field.blur()


def _of_hosts(browser: Browser, scratch: Path) -> None:
    (scratch / "hosts").mkdir()
    with ssh_hosts(scratch / "hosts") as hosts:
        options = (page_driver.NO_STANDBY, "--engine", "ssh", "--site", str(hosts.site_file))
        with (
            page_driver.variables_set(hosts.environment),
            page_driver.serve(scratch / "ssh", *options) as server,
        ):
            machine = f"{server.address}/machine"
            page = page_driver.open_page(browser, machine)
            page.get_by_role("button", name="Measure between hosts").click()
            take(browser, "hosts", machine, "Measured ", "section:has-text('Hosts')")


if __name__ == "__main__":
    main()
