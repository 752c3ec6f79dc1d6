"""From a pasted listing to a watched run: the editor, the detected settings, Start, findings and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import Page, expect

from tests.harness import END_TIMEOUT_S, REPOSITORY, wait_until
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract import code, events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

SCRIPTS = REPOSITORY / "tests" / "scripts"
LISTING = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler

def train(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = DDP(SomeModel().to(rank), device_ids=[rank])
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(batch.to(rank))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
"""


def open_page(watched: Watched, server: Server) -> Page:
    page = watched.page
    page.goto(f"{server.address}/script")
    expect(page.locator(".cm-content")).to_be_visible()  # playwright pierces shadow roots
    return page


def paste(page: Page, text: str, *, replace: bool = True) -> None:
    """Paste into the editor like a user, replacing its text or at the cursor."""
    page.locator(".cm-content").click()
    if replace:
        page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)


def end_of(runs_dir: Path, run_id: str) -> str:
    run = RunDirectory(runs_dir / run_id)
    status: Any = wait_until(
        "the end of the script",
        lambda: (now := liveness.read_status(run)).state in ("finished", "failed", "stopped") and now,
        END_TIMEOUT_S,
    )
    return str(status.state)


def test_a_pasted_listing_is_run(server: Server, watched: Watched, client: Client, runs_dir: Path) -> None:
    page = open_page(watched, server)
    expect(page.locator("#ddp-script-ranks")).to_have_value("1")
    expect(page.locator(".cm-placeholder")).to_contain_text("Paste your script here")
    start = page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_disabled()
    expect(page.locator(".ddp-script-start .ddp-hint")).to_contain_text("Nothing to start yet")
    paste(page, LISTING, replace=False)
    notes = page.locator(".ddp-script-notes")
    expect(notes).to_contain_text("There is no GPU here")
    expect(notes.get_by_role("button", name="Line 7")).to_be_visible()
    expect(page.locator("#ddp-script-on-cpu")).to_be_checked()
    # The empty editor had one process, so one rank.
    expect(page.locator("#ddp-script-ranks")).to_have_value(
        str(client.predict(api_name="/script_page")["ranks"])
    )
    expect(page.locator(".ddp-script-start .ddp-hint")).to_contain_text("Started with torchrun: line 7")
    expect(notes).to_contain_text("the script does not call this function")
    notes.get_by_role("button", name="Add these lines").click()
    expect(page.locator(".cm-line.marked-added").first).to_contain_text("# added")
    expect(notes).not_to_contain_text("Something is missing")
    start.click()
    page.wait_for_url("**/run?id=*")
    run_id = page.url.partition("id=")[2]
    assert end_of(runs_dir, run_id) == "finished"
    card = page.locator(".ddp-script")
    expect(card.locator("summary")).to_contain_text("requests for a GPU have no effect")
    expect(card.locator(".cm-content")).to_contain_text("class SomeModel")
    expect(page.locator(".ddp-header")).to_contain_text("finished")
    for absent in ("Pause", "Set"):
        expect(page.get_by_role("button", name=absent, exact=True)).to_have_count(0)
    for disabled in ("Checkpoint", "Resume"):
        expect(page.get_by_role("button", name=disabled, exact=True)).to_be_disabled()
    expect(page.locator(".ddp-header .ddp-hint")).to_contain_text(
        "has not called watch.load(…) and watch.save(…)"
    )
    stored = code.read(runs_dir / run_id)["train.py"].decode()
    page.reload()  # the server has read all events by now
    expect(page.locator(".ddp-subtitle")).to_contain_text("SomeModel (")
    card.get_by_role("button", name="Edit and run again").click()
    page.wait_for_url("**/script")
    expect(page.locator("#ddp-script-on-cpu")).to_be_checked()
    expect(page.locator(".cm-content")).to_contain_text("class SomeModel")
    assert stored.count("# added") > 5


def losses_of(run: RunDirectory) -> dict[int, float]:
    found, _ = events.read(run.events)
    return {event["step"]: event["loss"] for event in found if event["kind"] == "step"}


def test_a_run_s_script_is_opened_in_the_editor_and_trains_to_the_same_losses(
    server: Server, page: Page, client: Client, ended: RunDirectory, runs_dir: Path
) -> None:
    page.goto(f"{server.address}/run?id={ended.run_id}")
    page.locator(".ddp-as-code summary").click()
    page.locator(".ddp-as-code").get_by_role("button", name="Open in the editor").click()
    page.wait_for_url("**/script")
    expect(page.locator(".cm-content")).to_contain_text(f"From the settings of the run {ended.run_id}")
    expect(page.locator("#ddp-script-ranks")).to_have_value("2")
    expect(page.locator(".ddp-script-start .ddp-hint")).to_contain_text("Started with torchrun")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/run?id=*")
    run_id = page.url.partition("id=")[2]
    assert end_of(runs_dir, run_id) == "finished"
    expected, got = losses_of(ended), losses_of(RunDirectory(runs_dir / run_id))
    assert len(expected) > 20
    # The watcher averages the ranks' losses in double precision, the run in single precision.
    assert got == pytest.approx(expected, rel=2e-7)
    expect(page.locator(".ddp-script .ddp-hint").first).to_contain_text("The review has found nothing")
    # Files saved by the script are not part of its code.
    assert set(client.predict(run_id, api_name="/script_code")["files"]) == {"train.py"}


def test_the_editor_has_an_example_and_keeps_its_code(server: Server, watched: Watched) -> None:
    page = open_page(watched, server)
    example, editor = page.get_by_role("button", name="Open an example"), page.locator(".cm-content")
    example.click()
    expect(editor).to_contain_text("DistributedDataParallel")
    expect(example).to_be_hidden()
    expect(page.locator("#ddp-script-ranks")).to_have_value("2")

    paste(page, (SCRIPTS / "plain_ddp.py").read_text())
    options = page.locator(".ddp-script-options")
    expect(options.get_by_label("--epochs")).to_have_value("3")
    options.get_by_label("--epochs").fill("5")
    options.get_by_label("--optimizer").select_option("adam")
    options.get_by_label("--verbose").check()
    expect(page.locator("#ddp-script-arguments")).to_have_value("--epochs 5 --optimizer adam --verbose")

    paste(page, "x = 1  # mine")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    expect(page.locator(".cm-line").first).to_have_text("    x = 1  # mine")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(editor).not_to_be_focused()
    paste(page, "x = 1  # mine")
    page.locator("#ddp-script-ranks").fill("3")
    for leave_and_return in (page.reload, lambda: (page.goto(f"{server.address}/runs"), page.go_back())):
        leave_and_return()
        expect(editor).to_contain_text("x = 1  # mine")
        expect(page.locator("#ddp-script-ranks")).to_have_value("3")
        expect(page.locator(".ddp-script-start .ddp-hint")).to_contain_text("Started with python")
    # What was found in this script and not chosen does not hold for the next one.
    paste(page, LISTING)
    expect(page.locator("#ddp-script-start")).to_have_value("torchrun")


def test_an_error_is_shown_at_its_line(server: Server, page: Page, client: Client, runs_dir: Path) -> None:
    text = (SCRIPTS / "fails.py").read_text()
    started = client.predict({"files": {"fails.py": text}, "ranks": 2}, api_name="/start_script")
    assert end_of(runs_dir, started["run_id"]) == "failed"
    page.goto(f"{server.address}/run?id={started['run_id']}")
    expect(page.locator(".cm-line.marked-error")).to_contain_text("raise ValueError")
    expect(page.locator(".ddp-run-page")).to_contain_text("Rank 1 failed: ValueError")
    assert page.evaluate("window.scrollY") == 0, "only the text of the editor is scrolled to the line"
    again = client.predict(started["run_id"], api_name="/script_code")
    assert again["files"]["fails.py"] == text and again["ranks"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": {}}, "files is"),
        ({"files": {"../train.py": "x"}, "entry": "../train.py"}, "a relative path without"),
        ({"files": {"train.py": "for"}}, "is not valid Python: Line 1"),
        ({"files": {"train.py": "1"}, "ranks": 5000}, "nproc_per_node is 5000"),
        ({"files": {"train.py": "1"}, "environment": "PYTHONPATH=/tmp"}, "reserved are"),
        ({"files": {"train.py": "1"}, "folder": "/no/such/folder"}, "a folder on this machine"),
        ({"files": {"train.py": "1"}, "unknown": 1}, "no field of this name"),
    ],
)
def test_a_script_that_cannot_start_is_refused(client: Client, change: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=r"allowed:|is not valid") as caught:
        client.predict(change, api_name="/start_script")
    assert said in str(caught.value), json.dumps(change)


def test_the_form_cannot_start_a_script_without_its_code(client: Client) -> None:
    with pytest.raises(Exception, match="scripts are started on their own page"):
        client.predict({"dataset": "digits", "model": "mlp", "script": "x.py"}, api_name="/start_run")


def test_files_of_this_machine_are_opened_by_their_path(client: Client, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("x = 1\n")
    opened = client.predict(str(tmp_path / "train.py"), "", api_name="/open_script")
    assert opened["entry"] == "train.py" and set(opened["files"]) == {"train.py", "helper.py"}
    assert opened["folder"] == str(tmp_path)


def test_a_script_that_saves_is_resumed(server: Server, page: Page, client: Client, runs_dir: Path) -> None:
    text = (REPOSITORY / "docs" / "scripts.md").read_text()
    example = next(part for part in text.split("```python\n") if "watch.load(" in part).partition("```")[0]
    slow = example.replace("optimizer.step()", "optimizer.step(), __import__('time').sleep(0.02)")
    run_id = client.predict({"files": {"train.py": slow}, "ranks": 2}, api_name="/start_script")["run_id"]
    page.goto(f"{server.address}/run?id={run_id}")
    page.get_by_role("button", name="Checkpoint", exact=True).click(timeout=END_TIMEOUT_S * 1000)
    saved = page.locator(".ddp-checkpoints tbody tr")
    expect(saved).to_have_count(1, timeout=END_TIMEOUT_S * 1000)
    expect(saved).to_contain_text("on request")
    page.get_by_role("button", name="Stop", exact=True).click()
    assert end_of(runs_dir, run_id) == "stopped"
    expect(saved).to_have_count(2)
    for field in ("nproc_per_node", "more_epochs"):
        endpoint = "/train_more" if field == "more_epochs" else "/resume_run"
        with pytest.raises(AppError, match=f"{field} is 3; allowed: null"):
            client.predict(run_id=run_id, api_name=endpoint, **{field: 3})
    page.get_by_role("button", name="Resume", exact=True).click()
    wait_until(
        "the resumed script", lambda: max(losses_of(RunDirectory(runs_dir / run_id))) == 192, END_TIMEOUT_S
    )
    assert end_of(runs_dir, run_id) == "finished"
    assert sorted(losses_of(RunDirectory(runs_dir / run_id))) == list(range(1, 193))
