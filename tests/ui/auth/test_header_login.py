"""A page behind an authenticating proxy shows the user's name and offers no logout."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from ddp_gui.auth import rights
from tests import prefix_proxy
from tests.unit.ddp_gui.runs.test_runs import make_run
from tools import page_driver


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a page with a run of Ann's behind a proxy with three users."""
    runs_dir = tmp_path_factory.mktemp("header") / "runs"
    rights.note_owner(make_run(runs_dir), "ann")
    port = page_driver.free_port()
    command = [sys.executable, "app.py", "--no-browser", page_driver.NO_STANDBY, "--port", str(port)]
    command += ["--runs-dir", str(runs_dir), "--root-path", "/ddp", "--proxy-from", "127.0.0.1"]
    command += ["--auth-header", "X-Remote-User", "--teacher", "eve"]
    names = {name: name for name in ("ann", "bob", "eve")}
    with prefix_proxy.in_front_of(port, "/ddp", names) as proxy, page_driver.serve_command(command, port):
        yield proxy


@pytest.mark.parametrize(("name", "role"), [("bob", "student"), ("eve", "teacher")])
def test_whom_the_proxy_names_is_shown_without_a_log_out(
    browser: Browser, address: str, name: str, role: str
) -> None:
    context = browser.new_context(extra_http_headers={"X-Password": name})
    context.add_init_script("localStorage.setItem('ddp:tour', '\"seen\"')")
    page = context.new_page()
    page.goto(f"{address}/run?id=fashion_mnist-cnn-1")
    expect(page.locator(".ddp-person")).to_have_text(f"{name}{role}")
    expect(page.get_by_role("button", name="Class …")).to_have_count(1 if role == "teacher" else 0)
    expect(page.get_by_role("button", name="Log out")).to_have_count(0)
    not_mine = page.locator(".ddp-not-mine")
    if role == "student":
        expect(not_mine).to_contain_text("This run belongs to ann.")
    else:
        expect(not_mine).to_be_hidden()
    page.goto(f"{address}/runs")
    expect(page.get_by_text("fashion_mnist-cnn-1").first).to_be_visible()
    expect(page.get_by_role("columnheader", name="Owner")).to_be_visible()
    context.close()
