"""The page behind JupyterHub: two users, each with the runs of their own server below their own prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import NewContext, Watched
from tests.ui.notebook import jupyter
from trainers.contract.rundir import RunDirectory

PASSWORD = "a-password-of-a-test"


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def hub(tmp_path: Path, homes: Path) -> Iterator[str]:
    jupyter.require("jupyterhub", "jupyterlab", "jupyter_server_proxy", program=jupyter.HTTP_PROXY)
    homes.mkdir()
    with jupyter.serve_hub(tmp_path, PASSWORD) as address:
        yield address


def log_in(new_context: NewContext, hub: str, name: str) -> Page:
    """Log in with a browser of this user; return the page when the user's server shows JupyterLab."""
    page = new_context().new_page()
    page.goto(f"{hub}/hub/login")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{hub}/user/{name}/lab**", timeout=120_000)
    return page


def test_two_users_train_below_their_prefixes_and_cannot_open_each_other_s_page(
    hub: str, homes: Path, new_context: NewContext
) -> None:
    pages = {name: log_in(new_context, hub, name) for name in ("ann", "ben")}
    runs: dict[str, RunDirectory] = {}
    for name, page in pages.items():
        watched = Watched(page)
        page.goto(f"{hub}/user/{name}/rankscope/")
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url(f"{hub}/user/{name}/rankscope/run?id=*")
        expect(page.locator(".ddp-pill")).to_have_text("running")
        # The proxies of the hub and of Jupyter pass the messages on one by one.
        page.wait_for_function("() => window.ddpStats.messages > 5")
        assert not any("/poll?" in url for url in watched.requests)
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.locator(".ddp-pill")).to_have_text("stopped")
        assert watched.complaints == []
        (runs[name],) = [
            RunDirectory(path)
            for path in (homes / name / "runs").iterdir()
            if (path / "config.json").is_file()
        ]
        assert runs[name].run_id == page.url.partition("?id=")[2]
        assert runs[name].list_checkpoints()

    of_ben = f"{hub}/user/ben/rankscope"
    for path in ("/", f"/run?id={runs['ben'].run_id}", "/live/runs"):
        answer = pages["ann"].goto(of_ben + path)
        assert answer is not None and answer.status == 403, path
        assert "ben" not in answer.url.partition("/hub/")[0], "the hub answers, not the server of ben"
    answer = pages["ben"].goto(f"{of_ben}/live/runs")
    assert answer is not None and answer.status == 200
