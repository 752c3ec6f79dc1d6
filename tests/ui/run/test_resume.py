"""The run page of an ended run: its best checkpoint, and going on with another number of ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gradio_client import Client
from playwright.sync_api import expect

from tests.harness import END_TIMEOUT_S, START_TIMEOUT_S, all_events, wait_until
from tests.ui.conftest import Watched
from tools.page_driver import Server
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

LONG = {"dataset": "digits", "model": "mlp", "device": "cpu", "nproc_per_node": 2, "batch_size": 32}


def test_resume_on_one_rank_with_the_batch_of_each_kept(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    run_id = client.predict({**LONG, "num_epochs": 12}, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    # Held while it starts, so that it is not over before it can be stopped, however fast the machine.
    wait_until("the ranks being started", run.rank_log(0).exists, START_TIMEOUT_S)
    client.predict(run_id, api_name="/pause_run")
    wait_until("the pause", lambda: liveness.read_status(run).state == "paused", START_TIMEOUT_S)
    client.predict(run_id, True, api_name="/stop_run")
    wait_until("the stop", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "stopped" and run.list_checkpoints()
    before = client.predict(run_id, api_name="/run_status")

    page = watched.page
    page.goto(f"{server.address}/run?id={run_id}")
    expect(page.locator(".ddp-pill")).to_have_text("stopped")
    expect(page.locator(".ddp-rank-head strong")).to_have_text(["rank 0", "rank 1"])
    expect(page.locator(".ddp-device strong")).to_have_text(["rank 0", "rank 1"])
    batch = page.get_by_label("What becomes of the batch")
    expect(batch).to_be_hidden()
    page.get_by_label("Number of ranks to resume with").select_option(label="1 rank")
    batch.select_option(label="same batch per rank")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".ddp-subtitle")).to_contain_text("1 CPU rank")

    def num_steps() -> int:
        return int(client.predict(run_id, api_name="/run_status")["num_steps"])

    wait_until("more steps, with half the batch", lambda: num_steps() > before["num_steps"], START_TIMEOUT_S)
    expect(page.locator(".ddp-where")).to_contain_text(f"of {num_steps():,}")
    expect(page.locator(".ddp-equation")).to_contain_text(re.compile(r"32per rank×1rank=32global batch"))
    config = json.loads(run.config.read_text())
    assert (config["nproc_per_node"], config["batch_size"]) == (1, 32)
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error
    steps = [event["step"] for event in all_events(run) if event["kind"] == "step"]
    assert steps[-1] == num_steps(), "the run ends at the step the page named"
    assert steps == list(range(1, len(steps) + 1))
    for _ in range(2):
        expect(page.locator(".ddp-pill")).to_have_text("finished")
        expect(page.locator(".ddp-rank-head strong")).to_have_text(["rank 0"])
        expect(page.locator(".ddp-device strong")).to_have_text(["rank 0"])
        page.reload()


def test_the_best_checkpoint_is_marked_and_deleted_ones_are_not_offered(
    server: Server, client: Client, watched: Watched, runs_dir: Path
) -> None:
    config = {**LONG, "num_epochs": 12, "learning_rate": 0.02, "keep_last_checkpoints": 2}
    run_id = client.predict(config, api_name="/start_run")["run_id"]
    run = RunDirectory(runs_dir / run_id)
    wait_until("the end", lambda: liveness.read_status(run).state not in events.LIVE_STATES, END_TIMEOUT_S)
    assert liveness.read_status(run).state == "finished", liveness.read_status(run).error
    evaluations = [event for event in all_events(run) if event["kind"] == "eval"]
    best = max(evaluations, key=lambda event: (event["metrics"]["accuracy"], -event["step"]))["step"]
    there = {item.step for item in run.list_checkpoints()}
    assert best in there and len(there) <= 3

    page = watched.page
    page.goto(f"{server.address}/run?id={run_id}")
    rows = page.locator(".ddp-checkpoints tbody tr")
    expect(rows).to_have_count(len(there))
    expect(page.locator(".ddp-checkpoints tr:has(.ddp-best) td").first).to_contain_text(f"{best:,}")
    expect(page.locator(".ddp-best")).to_have_count(1)
    options = page.get_by_label("Checkpoint to resume from").locator("option")
    expect(options).to_have_count(len(there))
    offered = options.all_inner_texts()
    assert {int(re.findall(r"\d+", words)[0]) for words in offered} == there
    assert [words for words in offered if "best" in words]
    expect(page.locator(".ddp-events-list")).to_contain_text("Deleted to save space: step")
    expect(page.locator(".ddp-rank-device").first).to_contain_text(re.compile(r"peak memory \d+ MB"))
    assert watched.complaints == []
