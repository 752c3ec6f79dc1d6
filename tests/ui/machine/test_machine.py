"""The Machine page in a real browser: its figures, and the communication check."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import Page, expect

from tests.harness import START_TIMEOUT_S, wait_until
from tests.ui.conftest import NewContext, Start, Watched, assert_usable_on_a_phone
from tests.ui.machine.fake_machine import with_fake_gpus
from tools.page_driver import Server


def open_machine(watched: Watched, server: Server) -> Page:
    watched.page.goto(f"{server.address}/machine")
    watched.page.locator(".ddp-processor").wait_for()
    return watched.page


def report_of(server: Server) -> Any:
    with urllib.request.urlopen(f"{server.address}/live/machine", timeout=180) as response:
        return json.load(response)


def check_processes(server: Server) -> list[psutil.Process]:
    """Return the remaining processes of the server's checks."""
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        try:
            if "trainers.check_communication" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def is_rank_1(process: psutil.Process) -> bool:
    try:
        return process.environ().get("RANK") == "1"
    except psutil.NoSuchProcess:
        return False


HIDE = """(state) => {
  Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_this_machine_is_shown_unless_hidden(server: Server, new_context: NewContext, runs_dir: Path) -> None:
    watched = Watched(new_context().new_page())  # the clock is that of all its pages
    watched.page.clock.install()
    page = open_machine(watched, server)
    report = report_of(server)
    expect(page.get_by_role("heading", name="Machine", exact=True)).to_be_visible()
    expect(page.locator(".ddp-gpus")).to_contain_text(report["summary"])
    expect(page.locator(".ddp-core")).to_have_count(psutil.cpu_count())
    expect(page.locator(".ddp-processor .ddp-figure")).to_have_text(re.compile(r"^\d+%$"))
    expect(page.locator(".ddp-disk")).to_contain_text(str(runs_dir))
    expect(page.locator(".ddp-disk")).to_contain_text("No run is live")
    for entry in report["versions"]:
        expect(page.locator(".ddp-versions")).to_contain_text(entry["version"] or "none here")
    missing = page.get_by_role("region", name="What is missing")
    for item in report["missing"]:
        expect(missing.get_by_role("list")).to_contain_text(item["what"])
    page.wait_for_function("() => document.querySelector('.ddp-meter').getAttribute('aria-valuetext')")

    page.evaluate(HIDE, "hidden")
    before = num_reports(watched)
    for _ in range(5):
        page.clock.run_for(10_000)
        page.wait_for_timeout(100)  # a further request follows a response
    assert num_reports(watched) <= before + 1, "one may be under way"
    with page.expect_request("**/live/machine"):
        page.evaluate(HIDE, "visible")
    assert watched.complaints == []
    assert watched.foreign_requests == []
    # Checks run in separate processes: the page's process loads neither torch nor CUDA.
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libcudart" not in maps


def num_reports(watched: Watched) -> int:
    return sum("/live/machine" in url for url in watched.requests)


def test_the_button_measures_and_says_what_it_means(server: Server, watched: Watched) -> None:
    page = open_machine(watched, server)
    page.get_by_label("Between how many ranks").select_option("2")
    page.get_by_role("button", name="Measure").click()
    words = page.locator(".ddp-check-verdict")
    expect(words).to_have_attribute("data-state", "running")
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()
    expect(words).to_have_attribute("data-state", "done")
    expect(words).to_have_text(
        re.compile(
            r"^The gradients of a model with 10 million parameters \(40 MB\) take about [\d.]+ (ms|s|µs) "
            r"to average between these 2 ranks\.$"
        )
    )
    rows = page.locator(".ddp-check-table tbody tr")
    expect(rows).to_have_count(9)
    check = Client(server.address, verbose=False).predict(
        report_of(server)["communication"]["newest_check_id"], api_name="/communication_check"
    )
    assert all(line["bus_bytes_per_s"] > 0 for line in check["lines"])
    drawn = "Array.from(document.querySelector('[data-chart=bandwidth] .js-plotly-plot').data[0].x)"
    sizes = [line["size_bytes"] for line in check["lines"]]
    page.wait_for_function(f"(sizes) => `${{{drawn}}}` === `${{sizes}}`", arg=sizes)
    assert check_processes(server) == []
    page.reload()
    expect(page.locator(".ddp-check-table tbody tr")).to_have_count(9)


def test_a_check_is_stopped_and_its_failure_shown(server: Server, watched: Watched, client: Client) -> None:
    page = open_machine(watched, server)
    verdict = page.locator(".ddp-check-verdict")
    page.get_by_role("button", name="Measure").click()
    wait_until("the ranks", lambda: len(check_processes(server)) >= 3, START_TIMEOUT_S)
    with pytest.raises(AppError, match="a check is already running"):
        client.predict(2, api_name="/check_communication")
    with pytest.raises(AppError, match="check_id is 'nothing'; allowed:"):
        client.predict("nothing", api_name="/communication_check")
    page.get_by_role("button", name="Stop").click()
    expect(verdict).to_have_text("Stopped. No process is left.")
    assert check_processes(server) == []

    page.get_by_role("button", name="Measure").click()
    (rank,) = wait_until(
        "rank 1", lambda: [each for each in check_processes(server) if is_rank_1(each)], START_TIMEOUT_S
    )
    rank.kill()
    expect(verdict).to_contain_text("Rank 1 was killed by a signal (SIGKILL)")
    expect(verdict).to_have_attribute("data-state", "failed")


def test_a_live_run_and_what_it_takes(server: Server, watched: Watched, client: Client, start: Start) -> None:
    run_id = start().run_id
    wait_until("steps", lambda: client.predict(run_id, api_name="/run_status")["step"] > 5, START_TIMEOUT_S)
    page = open_machine(watched, server)
    row = page.locator(".ddp-memory .ddp-users li")
    expect(row).to_contain_text(run_id)
    expect(row).to_contain_text(re.compile(r"\d+ processes, [\d.]+ [MG]B"))
    # The write rate is known after 30 s of samples, which may already have passed on a slow machine.
    expect(page.locator(".ddp-forecast")).to_contain_text(re.compile("known after 30 s|The live runs"))
    expect(page.get_by_text(f"Run {run_id} uses the same devices")).to_be_visible()
    expect(page.get_by_text("a check slows down training")).to_be_visible()
    row.get_by_role("link").click()
    page.wait_for_url(f"**/run?id={run_id}")


def test_made_up_gpus_are_drawn_and_nothing_is_wider_than_a_phone(server: Server, watched: Watched) -> None:
    page, report = watched.page, with_fake_gpus(report_of(server))
    page.route("**/live/machine", lambda route: route.fulfill(json=report))
    open_machine(watched, server)
    tiles = page.locator(".ddp-gpu")
    expect(tiles).to_have_count(4)
    expect(tiles.nth(0).get_by_role("link", name="digits-mlp-1")).to_be_visible()
    expect(tiles.nth(1)).to_contain_text("<b>blender</b> of ada (pid 77)")
    assert page.locator(".ddp-gpu b", has_text="blender").count() == 0, "names are text"
    expect(tiles.nth(2)).to_contain_text("Not in use.")
    expect(tiles.nth(3)).to_contain_text("does not answer")
    expect(page.locator(".ddp-forecast")).to_contain_text("the disk lasts about 3 d 4 h")
    expect(page.get_by_label("Between how many ranks")).to_have_value("3")
    assert_usable_on_a_phone(page)
