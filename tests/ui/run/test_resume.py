"""The page of an ended run: its best checkpoint, resuming with other ranks, and more epochs."""

from __future__ import annotations

import json
import re

from gradio_client import Client
from playwright.sync_api import Page, expect

from tests.harness import END_TIMEOUT_S, START_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Start, wait_until_finished
from tools.page_driver import Server
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness


def num_starts(run: RunDirectory) -> int:
    return sum(event["kind"] == "state" and event["state"] == "starting" for event in all_events(run))


def losses_of(run: RunDirectory) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in all_events(run) if event["kind"] == "step"}


def test_resume_on_one_rank(server: Server, client: Client, page: Page, start: Start) -> None:
    run = start(num_epochs=12)
    # Pause the run while it starts, so that a fast machine cannot finish it before the stop.
    wait_until("the ranks being started", run.rank_log(0).exists, START_TIMEOUT_S)
    client.predict(run.run_id, api_name="/pause_run")
    wait_until("the pause", lambda: liveness.read_status(run).state == "paused", START_TIMEOUT_S)
    client.predict(run.run_id, True, api_name="/stop_run")
    wait_until("the stop", lambda: liveness.read_status(run).state == "stopped", END_TIMEOUT_S)
    assert run.list_checkpoints()
    before = client.predict(run.run_id, api_name="/run_status")

    page.goto(f"{server.address}/run?id={run.run_id}")
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    expect(page.locator(".ddp-rank-head strong")).to_have_text(["rank 0", "rank 1"])
    expect(page.locator(".ddp-device strong")).to_have_text(["rank 0", "rank 1"])
    batch = page.get_by_label("How the batch changes")
    expect(batch).to_be_hidden()
    page.get_by_label("Number of ranks to resume with").select_option(label="1 rank")
    batch.select_option(label="same batch per rank")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".ddp-subtitle")).to_contain_text("1 CPU rank")

    def num_steps() -> int:
        return int(client.predict(run.run_id, api_name="/run_status")["num_steps"])

    wait_until("more steps, with half the batch", lambda: num_steps() > before["num_steps"], START_TIMEOUT_S)
    expect(page.locator(".ddp-where")).to_contain_text(f"of {num_steps():,}")
    expect(page.locator(".ddp-equation")).to_contain_text(re.compile(r"32per rank×1rank=32global batch"))
    config = json.loads(run.config.read_text())
    assert (config["nproc_per_node"], config["batch_size"]) == (1, 32)
    wait_until_finished(run)
    steps = [event["step"] for event in all_events(run) if event["kind"] == "step"]
    assert steps[-1] == num_steps(), "the run ends at the step the page named"
    assert steps == list(range(1, len(steps) + 1))
    for _ in range(2):
        expect(page.locator(".ddp-pill")).to_have_text("finished")
        expect(page.locator(".ddp-rank-head strong")).to_have_text(["rank 0"])
        expect(page.locator(".ddp-device strong")).to_have_text(["rank 0"])
        page.reload()


def test_the_best_checkpoint_and_more_epochs(server: Server, page: Page, start: Start) -> None:
    # A cosine schedule spans all epochs. Only with a constant rate does a longer run have the same losses.
    values = {"learning_rate": 0.02, "lr_schedule": "constant", "warmup_ratio": 0, "keep_last_checkpoints": 2}
    run = start(num_epochs=12, **values)
    wait_until_finished(run)
    evaluations = [event for event in all_events(run) if event["kind"] == "eval"]
    best = max(evaluations, key=lambda event: (event["metrics"]["accuracy"], -event["step"]))["step"]
    there = {item.step for item in run.list_checkpoints()}
    assert best in there
    assert len(there) <= 3

    page.goto(f"{server.address}/run?id={run.run_id}")
    expect(page.locator(".ddp-checkpoints tbody tr")).to_have_count(len(there))
    expect(page.locator(".ddp-checkpoints tr:has(.ddp-best) td").first).to_contain_text(f"{best:,}")
    expect(page.locator(".ddp-best")).to_have_count(1)
    options = page.get_by_label("Checkpoint to resume from").locator("option")
    expect(options).to_have_count(len(there))
    offered = options.all_inner_texts()
    assert {int(re.findall(r"\d+", words)[0]) for words in offered} == there
    assert [words for words in offered if "best" in words]
    expect(page.locator(".ddp-events-list")).to_contain_text("Deleted to save space: step")
    expect(page.locator(".ddp-rank-device").first).to_contain_text(re.compile(r"peak memory \d+ MB"))
    page.locator(f'.ddp-checkpoints button[data-step="{min(there)}"]').click()
    wait_until("the second start", lambda: num_starts(run) == 2, START_TIMEOUT_S)
    wait_until_finished(run)
    num_first = len(losses_of(run))
    assert num_first == max(there)

    more = page.get_by_role("button", name="Train more", exact=True)
    epochs = page.get_by_label("Epochs to train more")
    expect(page.get_by_text("equals that of a run that requests all epochs from the start")).to_be_visible()
    expect(epochs).to_have_value("10")
    for nonsense in ("0", "", "1.5", "100001"):
        epochs.fill(nonsense)
        expect(more).to_be_disabled()
    expect(page.get_by_text("More epochs: a whole number from 1 to 100,000.")).to_be_visible()
    epochs.fill("3")
    more.click()
    expect(page.locator(".ddp-where")).to_contain_text(f"of {num_first // 12 * 15:,}")
    wait_until("the third start", lambda: num_starts(run) == 3, START_TIMEOUT_S)
    wait_until_finished(run)
    assert run.read_config().num_epochs == 15
    at_once = start(num_epochs=15, **values)
    wait_until_finished(at_once)
    assert losses_of(run) == losses_of(at_once)
