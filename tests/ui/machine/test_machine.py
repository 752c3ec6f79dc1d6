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
from playwright.sync_api import Page, Route, expect

from tests.harness import ANSWER_TIMEOUT_S, START_TIMEOUT_S, wait_until
from tests.ui.attacks.attacking import ask
from tests.ui.conftest import Watched
from tests.ui.machine.fake_machine import with_fake_gpus
from tools.page_driver import Server

LONG = {"dataset": "digits", "model": "mlp", "num_epochs": 100_000, "nproc_per_node": 2, "device": "cpu"}


def open_machine(watched: Watched, server: Server) -> Page:
    """Open the page and wait for its figures."""
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


def is_wider_than_the_screen(page: Page) -> bool:
    return bool(page.evaluate("() => document.documentElement.scrollWidth > window.innerWidth"))


def test_the_page_shows_this_machine(server: Server, watched: Watched, runs_dir: Path) -> None:
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
    assert watched.foreign_requests == []
    assert watched.complaints == []


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
    assert watched.foreign_requests == []
    assert watched.complaints == []


def test_stop_ends_a_check_at_once_and_one_is_enough(
    server: Server, watched: Watched, client: Client
) -> None:
    page = open_machine(watched, server)
    page.get_by_role("button", name="Measure").click()
    wait_until("the ranks", lambda: len(check_processes(server)) >= 3, START_TIMEOUT_S)
    with pytest.raises(AppError, match="a check is already running"):
        client.predict(2, api_name="/check_communication")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".ddp-check-verdict")).to_have_text("Stopped. No process is left.")
    assert check_processes(server) == []
    expect(page.get_by_role("button", name="Measure")).to_be_enabled()


def test_a_check_that_fails_is_explained_on_the_page(server: Server, watched: Watched) -> None:
    page = open_machine(watched, server)
    before = report_of(server)["communication"]["newest_check_id"]
    page.get_by_role("button", name="Measure").click()

    def newest() -> str | None:
        check_id: str | None = report_of(server)["communication"]["newest_check_id"]
        return None if check_id == before else check_id

    check_id = wait_until("the check", newest, START_TIMEOUT_S)
    (rank,) = wait_until(
        "rank 1", lambda: [each for each in check_processes(server) if is_rank_1(each)], START_TIMEOUT_S
    )

    def measured() -> Any:
        # A call by the Gradio client would take about as long as the rest of the check.
        _, told = ask(server, "POST", "/gradio_api/run/communication_check", {"data": [check_id]})
        return json.loads(told)["data"][0]["lines"]

    wait_until("a measured size", measured, START_TIMEOUT_S)
    # Suspend the rank, which blocks the check, until the page has drawn the results so far.
    rank.suspend()
    expect(page.locator(".ddp-check-table tbody tr")).not_to_have_count(0)
    rank.kill()
    words = page.locator(".ddp-check-verdict")
    expect(words).to_contain_text("Rank 1 was killed by a signal (SIGKILL)")
    expect(words).to_have_attribute("data-state", "failed")


@pytest.mark.parametrize(("num_ranks", "words"), [(99, "num_ranks is 99; allowed:"), (1, "num_ranks is 1")])
def test_endpoints_refuse_what_cannot_be(client: Client, num_ranks: int, words: str) -> None:
    with pytest.raises(AppError, match=words):
        client.predict(num_ranks, api_name="/check_communication")
    for endpoint in ("/communication_check", "/stop_communication_check"):
        with pytest.raises(AppError, match="check_id is 'nothing'; allowed:"):
            client.predict("nothing", api_name=endpoint)


def test_a_live_run_is_shown_with_what_it_takes(server: Server, watched: Watched, client: Client) -> None:
    run_id = client.predict(LONG, api_name="/start_run")["run_id"]
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
    client.predict(run_id, False, api_name="/stop_run")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1440, True)])
def test_made_up_gpus_are_drawn_and_nothing_is_wider_than_the_screen(
    server: Server, watched: Watched, width: int, dark: bool
) -> None:
    page = watched.page
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.set_viewport_size({"width": width, "height": 844})
    report = with_fake_gpus(report_of(server))

    def answer(route: Route) -> None:
        route.fulfill(json=report)

    page.route("**/live/machine", answer)
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
    assert not is_wider_than_the_screen(page)
    assert watched.complaints == []


def test_a_hidden_page_asks_for_nothing(server: Server, watched: Watched) -> None:
    page = open_machine(watched, server)
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true });
          document.dispatchEvent(new Event('visibilitychange'));
        }"""
    )
    before = sum("/live/machine" in url for url in watched.requests)
    page.wait_for_timeout(5_000)
    assert sum("/live/machine" in url for url in watched.requests) <= before + 1, "one may be under way"
    page.evaluate(
        """() => {
          Object.defineProperty(document, 'visibilityState', { value: 'visible', configurable: true });
          document.dispatchEvent(new Event('visibilitychange'));
        }"""
    )
    wait_until(
        "the page asking again",
        lambda: (
            page.wait_for_timeout(100) or sum("/live/machine" in url for url in watched.requests) > before
        ),
        ANSWER_TIMEOUT_S,
    )


def test_the_page_holds_no_gpu(server: Server) -> None:
    """Checks run in separate processes: the page's process loads neither torch nor CUDA."""
    report_of(server)
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps and "libcudart" not in maps
