"""The page with two PCs: a run on both is started, followed, stopped and resumed by SSH."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.cluster.ssh_hosts import SshHosts
from tests.harness import run_to_end
from tests.ui.conftest import ServePage
from trainers.contract.rundir import RunDirectory


@pytest.fixture(autouse=True)
def _own_ssh(ssh_hosts: SshHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ssh_hosts.environment.items():
        monkeypatch.setenv(name, value)


def test_without_a_host_that_answers_the_page_is_not_served_and_says_why(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[ssh]\nhosts = [{ name = "nowhere.invalid" }, { name = "pc9" }]\n')
    options = ["--no-browser", "--engine", "ssh", "--site", str(site), "--runs-dir", str(tmp_path / "runs")]
    code, said = run_to_end([sys.executable, "app.py", *options], 120.0)
    assert code != 0 and "--engine ssh needs a host that answers: nowhere.invalid cannot be reached" in said


def test_each_host_is_shown(ssh_hosts: SshHosts, serve_page: ServePage, page: Page, tmp_path: Path) -> None:
    (tmp_path / "other" / "trainers").mkdir(parents=True)
    site = tmp_path / "site.toml"
    said = ssh_hosts.site_file.read_text()
    site.write_text(said.replace('"pc2"', f'{{ name = "pc2", project = "{tmp_path / "other"}" }}'))
    options = ("--engine", "ssh", "--site", str(site))
    server = serve_page(tmp_path / "runs", *options)
    page.goto(f"{server.address}/machine")
    hosts = page.get_by_role("region", name="Hosts")
    expect(hosts).to_contain_text("2 of 2 can take a run now. 1 needs attention.")
    first, second = hosts.get_by_role("listitem").all()
    for words in ("pc1 · free", "no GPU", "cores", "torch ", "clock agrees", "sees the runs"):
        expect(first).to_contain_text(words)
    expect(second).to_contain_text("pc2 has this project's code")
    # The other folder lacks the measuring program.
    hosts.get_by_role("button", name="Measure between hosts").click()
    expect(hosts).to_contain_text("No module named 'trainers.engines'")


def test_a_run_on_a_silent_host(
    ssh_hosts: SshHosts, serve_page: ServePage, page: Page, tmp_path: Path
) -> None:
    runs_dir = tmp_path / "runs"
    options = ("--engine", "ssh", "--site", str(ssh_hosts.unshared_site_file))
    server = serve_page(runs_dir, *options)
    page.goto(server.address)
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/run?id=*")
    run = RunDirectory(runs_dir / page.url.partition("?id=")[2])
    state = page.locator(".ddp-pill")
    expect(state).to_have_text("running")
    expect(page.locator(".ddp-ranks-list li")).to_have_count(2)
    with ssh_hosts.without_cable("pc1"):
        expect(page.locator("main, body").first).to_contain_text("pc1 has not answered since")
        expect(state).to_have_text("running")
    expect(page.get_by_text("pc1 has not answered since")).to_have_count(0)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(state).to_have_text("stopped")
    assert run.list_checkpoints()
    page.goto(f"{server.address}/machine")
    hosts = page.get_by_role("region", name="Hosts")
    expect(hosts).to_contain_text("2 of 2 can take a run now.")
    expect(hosts.get_by_role("button", name="Measure between hosts")).to_be_hidden()
    expect(hosts).not_to_contain_text("sees the runs")


def test_hosts_are_measured(ssh_hosts: SshHosts, serve_page: ServePage, page: Page, tmp_path: Path) -> None:
    options = ("--engine", "ssh", "--site", str(ssh_hosts.site_file))
    server = serve_page(tmp_path / "runs", *options)
    page.goto(f"{server.address}/machine")
    hosts = page.get_by_role("region", name="Hosts")
    button = hosts.get_by_role("button", name="Measure between hosts")
    button.click()
    expect(hosts).to_contain_text("Measuring: 0 of 1 done")
    expect(button).to_be_disabled()
    link = hosts.get_by_role("listitem").filter(has_text="pc1 – pc2")
    expect(link).to_contain_text(re.compile(r"[MG]B/s · .* for a small message · .* · gloo"))
    expect(hosts).to_contain_text("Measured ")
    with ssh_hosts.without_cable("pc2"):
        button.click()
        expect(hosts).to_contain_text("Not measured: pc2 ")
        expect(hosts).to_contain_text("pc2 · not reached")
        expect(hosts).to_contain_text("1 of 2 can take a run now.")
