"""The section of a run's page with files for other machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.made_run import make_finished
from tests.ui.conftest import Watched, assert_usable
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

LABELS = ("torchrun commands", "Slurm script", "Kubeflow TrainJob", "SkyPilot task")
# Before that, the page of a finished run is hidden and ignores keys.
HAS_ALL = "() => document.querySelector('.ddp-run-page:not(.ddp-awaits-all)') !== null"
LOOKS = {"light": (1440, False), "phone, dark": (390, True)}


@pytest.fixture(scope="module")
def site(server: Server, runs_dir: Path) -> tuple[Server, str]:
    return server, make_finished(RunDirectory(runs_dir / "elsewhere-1"), 1_000).run_id


def open_fold(page: Page, site: tuple[Server, str]) -> None:
    server, run_id = site
    page.goto(f"{server.address}/run?id={run_id}")
    page.wait_for_function(HAS_ALL)
    page.locator(".ddp-elsewhere > summary").press("Enter")
    expect(page.locator(".ddp-elsewhere-list > li")).to_have_count(len(LABELS))


def test_each_file_is_named_copied_and_downloaded(site: tuple[Server, str], watched: Watched) -> None:
    page = watched.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_fold(page, site)
    for label in LABELS:
        row = page.get_by_role("listitem", name=label, exact=True)
        expect(row).to_contain_text("Not tested" if label != LABELS[0] else "Tested: this")
        page.get_by_role("button", name=f"Copy: {label}").click()
        expect(page.get_by_role("button", name=f"Copy: {label}")).to_have_text("Copied")
        with page.expect_download() as started:
            page.get_by_role("link", name=f"Download: {label}").click()
        text = started.value.path().read_text()
        assert page.evaluate("navigator.clipboard.readText()") == text
        row.locator("summary").click()
        expect(row.locator("code")).to_be_visible()
        assert row.locator("code").text_content() == text
    assert watched.complaints == [] and watched.foreign_requests == []


def test_the_files_follow_what_is_chosen(site: tuple[Server, str], watched: Watched) -> None:
    page = watched.page
    open_fold(page, site)
    machines, words = page.get_by_label("Machines"), page.locator(".ddp-elsewhere [role=status]")
    script = page.get_by_role("listitem", name="Slurm script", exact=True).locator("code")
    expect(machines).to_have_value("2")
    machines.fill("3")
    machines.press("Tab")
    expect(words).to_contain_text("3 machines: 6 ranks in all")
    expect(script).to_contain_text("#SBATCH --nodes=3")
    page.get_by_label("One GPU for each rank").check()
    expect(script).to_contain_text("#SBATCH --gpus-per-node=2")
    machines.fill("0")
    machines.press("Tab")
    expect(words).to_contain_text("3 machines")  # the browser shows the allowed values; no request is sent
    assert "num_nodes=3&gpus=true" in str(
        page.get_by_role("link", name="Download: Slurm").get_attribute("href")
    )
    assert watched.complaints == []


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_keeps_anybody_out_and_no_line_is_too_wide(
    site: tuple[Server, str], watched: Watched, look: str
) -> None:
    width, is_dark = LOOKS[look]
    page = watched.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")
    open_fold(page, site)
    for shown in page.locator(".ddp-elsewhere-list summary").all():
        shown.click()
    assert_usable(page, ".ddp-elsewhere")
