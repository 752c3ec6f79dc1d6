"""The script of a run on its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.made_run import make_finished
from tests.ui.conftest import Watched, assert_usable
from tests.ui.run.test_elsewhere import HAS_ALL, LOOKS
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory

SECTION = ".ddp-as-code"


@pytest.fixture(scope="module")
def site(server: Server, runs_dir: Path) -> tuple[Server, str]:
    return server, make_finished(RunDirectory(runs_dir / "as-code-1"), 1_000).run_id


def open_script(page: Page, site: tuple[Server, str]) -> None:
    server, run_id = site
    page.goto(f"{server.address}/run?id={run_id}")
    page.wait_for_function(HAS_ALL)
    page.locator(f"{SECTION} summary").press("Enter")
    expect(page.locator(f"{SECTION} .ddp-code-line").first).to_contain_text('"""')


def test_the_script_is_copied_and_downloaded_as_shown(site: tuple[Server, str], watched: Watched) -> None:
    page = watched.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_script(page, site)
    section = page.locator(SECTION)
    shown = "".join(section.locator(".ddp-code-line").all_inner_texts())
    section.get_by_role("button", name="Copy").click()
    expect(section.get_by_role("button", name="Copied")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert "init_process_group" in text and "init_process_group" in shown
    assert len(section.locator(".ddp-code-line").all()) == text.count("\n")
    expect(section.get_by_role("status")).to_contain_text("torchrun --nproc_per_node 2 train.py")
    for name, words in (("train.py", "Download train.py"), ("train.ipynb", "Download as a notebook")):
        with page.expect_download() as started:
            section.get_by_role("link", name=words).click()
        assert started.value.suggested_filename == name
        found = started.value.path().read_text(encoding="utf-8")
        if name == "train.py":
            assert found == text
        else:
            assert json.loads(found)["nbformat"] == 4
    assert watched.complaints == [] and watched.foreign_requests == []


def test_the_lines_that_ranks_need_are_marked_on_demand(site: tuple[Server, str], watched: Watched) -> None:
    page = watched.page
    open_script(page, site)
    section = page.locator(SECTION)
    added, removed = section.locator(".ddp-code-added"), section.locator(".ddp-code-removed")
    expect(added).to_have_count(0)
    section.get_by_label("Mark what several ranks need").check()
    expect(added.filter(has_text="DistributedDataParallel(")).to_have_count(1)
    expect(removed.filter(has_text="RandomSampler(")).to_have_count(1)
    expect(section.get_by_role("status")).to_contain_text("lines that 2 ranks need")
    section.get_by_label("Mark what several ranks need").uncheck()
    expect(removed).to_have_count(0)
    assert watched.complaints == []


def test_an_error_is_said_and_opening_it_again_asks_again(site: tuple[Server, str], watched: Watched) -> None:
    page = watched.page
    page.route("**/live/runs/*/code", lambda route: route.abort())
    server, run_id = site
    page.goto(f"{server.address}/run?id={run_id}")
    fold = page.locator(f"{SECTION} summary")
    fold.click()
    expect(page.locator(f"{SECTION} [role=status]")).to_contain_text("does not answer")
    page.unroute("**/live/runs/*/code")
    fold.click()
    fold.click()
    expect(page.locator(f"{SECTION} .ddp-code-line").first).to_be_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_keeps_anybody_out_and_only_the_code_scrolls_sideways(
    site: tuple[Server, str], watched: Watched, look: str
) -> None:
    width, is_dark = LOOKS[look]
    page = watched.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")
    open_script(page, site)
    page.locator(SECTION).get_by_label("Mark what several ranks need").check()
    assert_usable(page, SECTION)
