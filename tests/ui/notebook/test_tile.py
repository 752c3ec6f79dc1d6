"""The tile in JupyterLab's launcher: the page behind jupyter-server-proxy."""

from __future__ import annotations

import urllib.request

from playwright.sync_api import expect

from tests.ui.conftest import NewPage, Watched
from tests.ui.notebook.jupyter import TOKEN, Jupyter
from trainers.contract.rundir import RunDirectory


def test_the_tile_opens_the_page_which_streams_a_run_below_the_prefix(
    jupyterlab: Jupyter, new_page: NewPage
) -> None:
    page = new_page()
    page.goto(f"{jupyterlab.address}/lab?token={TOKEN}")
    tile = page.locator(".jp-LauncherCard", has_text="Rankscope")
    expect(tile.get_by_role("img", name="Rankscope")).to_be_visible()
    with page.context.expect_page() as opened:
        tile.click()
    tab = Watched(opened.value)
    tab.page.wait_for_url(f"{jupyterlab.address}/rankscope/")
    tab.page.get_by_role("button", name="Start", exact=True).click()
    tab.page.wait_for_url("**/rankscope/run?id=*")
    expect(tab.page.locator(".ddp-pill")).to_have_text("running")
    expect(tab.page.locator(".ddp-ranks-list li")).to_have_count(2)
    # Jupyter passes the messages on one by one: the page streams, and need not poll.
    tab.page.wait_for_function("() => window.ddpStats.messages > 5")
    assert any("/stream?" in url for url in tab.requests)
    assert not any("/poll?" in url for url in tab.requests)
    tab.page.get_by_role("button", name="Stop", exact=True).click()
    expect(tab.page.locator(".ddp-pill")).to_have_text("stopped")
    run = RunDirectory(jupyterlab.runs_dir / tab.page.url.partition("?id=")[2])
    assert run.list_checkpoints()
    assert tab.complaints == []
    assert all(url.startswith((f"{jupyterlab.address}/rankscope/", "data:", "blob:")) for url in tab.requests)
    # Without its token, Jupyter lets nobody through.
    with urllib.request.urlopen(f"http://127.0.0.1:{jupyterlab.port}/rankscope/live/runs") as answer:
        assert "/login?" in answer.url
