"""Make the pictures of the pages in front of a cluster and of PCs: two test machines, namespaces of this one.

    python -m tools.cluster_screenshots [FOLDER]

Without a folder the pictures in docs/images are replaced; with one, dark ones and those of a phone come too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.cluster.slurm_cluster import WITH_GPUS, slurm_cluster
from tests.cluster.ssh_hosts import ssh_hosts
from tools import page_driver
from tools.screenshots import REPOSITORY

LOOKS = {
    "": {"width": 1440, "height": 900, "dark": False},
    "-dark": {"width": 1440, "height": 900, "dark": True},
    "-phone": {"width": 390, "height": 844, "dark": False},
}
# A row of each machine, and its charts.
HIGH = 1500
TRAINS_FOR_MS = 8_000
MEASURES_WITHIN_MS = 60_000


class Camera:
    """Photographs an address in each look that is wanted."""

    def __init__(self, browser: Browser, folder: Path, looks: list[str]) -> None:
        self._browser = browser
        self._folder = folder
        self._looks = looks

    def take(self, name: str, address: str, wanted: str, *, height: int = 900) -> None:
        """Photograph a page when it says what is wanted; on a phone all of it."""
        for look in self._looks:
            shape = LOOKS[look]
            page = page_driver.open_page(
                self._browser,
                address,
                width=int(shape["width"]),
                height=max(height, int(shape["height"])),
                dark=bool(shape["dark"]),
            )
            if (tour := page.get_by_role("button", name="Close")).count():
                tour.first.click()
            expect(page.locator("body")).to_contain_text(wanted, timeout=MEASURES_WITHIN_MS)
            page.wait_for_timeout(2_500)
            path = self._folder / f"{name}{look}.png"
            page.screenshot(path=path, full_page=look == "-phone")
            print(path)
            page.close()


def main() -> None:
    """Take all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    looks = list(LOOKS) if len(sys.argv) > 1 else [""]
    with tempfile.TemporaryDirectory() as scratch, page_driver.open_browser() as browser:
        camera = Camera(browser, folder, looks)
        _of_slurm(camera, browser, Path(scratch))
        _of_hosts(camera, browser, Path(scratch))


def _of_slurm(camera: Camera, browser: Browser, scratch: Path) -> None:
    for kind in ("partitions", "nodes"):
        (scratch / kind).mkdir()
    options = (page_driver.NO_STANDBY, "--engine", "slurm")
    with (
        slurm_cluster(scratch / "partitions", WITH_GPUS) as cluster,
        page_driver.variables_set(cluster.environment),
        page_driver.serve(scratch / "none", *options) as server,
    ):
        camera.take("where", server.address, "Partition")
    with (
        slurm_cluster(scratch / "nodes") as cluster,
        page_driver.variables_set(cluster.environment),
        page_driver.serve(scratch / "slurm", *options) as server,
    ):
        page = page_driver.open_page(browser, server.address)
        page.get_by_label("Machines", exact=True).fill("2")
        page.get_by_label("Machines", exact=True).blur()
        expect(page.locator(".ddp-equation")).to_have_attribute("data-ranks", "4")
        page.get_by_label("Epochs", exact=True).fill("1000")
        page.get_by_label("Epochs", exact=True).blur()
        expect(page.locator("#command")).to_contain_text("1000")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/run?id=*")
        expect(page.locator(".ddp-pill")).to_have_text("running")
        page.wait_for_timeout(TRAINS_FOR_MS)
        camera.take("run-nodes", page.url, "node1", height=HIGH)
        camera.take("queue-slurm", f"{server.address}/queue", "running")
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.locator(".ddp-pill")).to_have_text("stopped")


def _of_hosts(camera: Camera, browser: Browser, scratch: Path) -> None:
    (scratch / "hosts").mkdir()
    with ssh_hosts(scratch / "hosts") as hosts:
        options = (page_driver.NO_STANDBY, "--engine", "ssh", "--site", str(hosts.site_file))
        with (
            page_driver.variables_set(hosts.environment),
            page_driver.serve(scratch / "ssh", *options) as server,
        ):
            page = page_driver.open_page(browser, f"{server.address}/machine")
            page.get_by_role("button", name="Measure between hosts").click()
            camera.take("hosts", f"{server.address}/machine", "Measured ")


if __name__ == "__main__":
    main()
