"""Cost of watching a run: telemetry, events, a page and its viewers, compared with a job without them.

    python -m benchmarks.watching [--rounds 7] [--model mlp] [--size ''] [--steps 4000] [--viewers 5]
                                  [--browser] [--json FILE]

Alternates the same training on two CPU ranks: started on a served page and followed by the viewers, and
started by torchrun without page, supervisor, events, telemetry and averaged losses
(`benchmarks/unwatched_worker`). Rates are wall-clock rates over the last three quarters of the steps.

The viewers are clients that read the run's live stream as a browser does, on the same cores as training; each
must receive the last step. Browsers would also draw on these cores and dominate the measurement: with
--browser one of the viewers is a real Chromium that shows the run's page.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from gradio_client import Client

from benchmarks import pairs
from benchmarks.compare import JOB_TIMEOUT_S, NEVER, NUM_RANKS, outcome_of, wait_for_end
from benchmarks.machine import Conditions, CpuMeter
from benchmarks.pairs import Figures
from benchmarks.unwatched_worker import MOMENTS, cpu_ms_per_step
from ddp_gui.plan import recipe
from tools import page_driver
from trainers.contract import config as config_module
from trainers.contract import events, rundir
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local.torchrun import literal_command, torchrun_arguments

CATCH_UP_S = 10.0
POLL_EVERY_S = 0.1

# (cursor, Unix time in ms) of each message of a stream.
Seen = list[tuple[int, float]]


def main() -> None:
    """Measure alternately and print the table."""
    parser = pairs.parser_of(__doc__)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--size", default="")
    parser.add_argument("--dataset", default="fashion_mnist")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--browser", action="store_true", help="one of the viewers is a real Chromium")
    options = parser.parse_args()
    conditions = Conditions.note()
    ways = {"watched": lambda: watched(options), "unwatched": lambda: unwatched(options)}
    found = pairs.in_turns(ways, options.rounds)
    with_all = pairs.column(found["watched"], "steps_per_s")
    without = pairs.column(found["unwatched"], "steps_per_s")
    told = {"ratio": pairs.ratios(with_all, without), "watched_steps_per_s": with_all}
    told["unwatched_steps_per_s"] = without
    for name in ("server_percent_of_a_core", "viewers_percent_of_a_core"):
        told[name] = pairs.column(found["watched"], name)
    pairs.tell(told, conditions, options.json)


def configuration(options: Namespace) -> dict[str, Any]:
    """Return the configuration of both jobs."""
    return {
        "model": options.model,
        "model_size": options.size,
        "dataset": options.dataset,
        "batch_size": options.batch_size,
        "nproc_per_node": NUM_RANKS,
        "device": "cpu",
        "seed": 0,
        "num_epochs": 100_000,
        "max_steps": options.steps,
        "eval_every_steps": NEVER,
        "checkpoint_every_steps": NEVER,
    }


def unwatched(options: Namespace) -> Figures:
    """Train without any watching.

    Raises:
        RuntimeError: the job failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = rundir.create(Path(folder), config_module.parse(configuration(options)))
        arguments = torchrun_arguments(NUM_RANKS, "benchmarks.unwatched_worker", str(run.path))
        command = literal_command(arguments, [sys.executable, "-m", "torch.distributed.run"])
        subprocess.run(
            command, cwd=page_driver.REPOSITORY, check=True, capture_output=True, timeout=JOB_TIMEOUT_S
        )
        moments = json.loads((run.path / MOMENTS).read_text())
        if run.events.exists() or moments[-1][0] != options.steps:
            raise RuntimeError(f"that was not the job that nobody watches: its last step is {moments[-1]}")
    rate = outcome_of([(step, moment) for step, moment, _ in moments], {}).steps_per_s
    return {"steps_per_s": rate, "cpu_ms_per_step": cpu_ms_per_step(moments)}


def watched(options: Namespace) -> Figures:
    """Train on a served page, with viewers.

    Raises:
        RuntimeError: the run did not finish, or a viewer did not receive all of its events.
    """
    num_clients = options.viewers - options.browser
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runs_dir = Path(folder) / "runs"
        server = stack.enter_context(page_driver.serve(runs_dir, page_driver.NO_STANDBY))
        browser = stack.enter_context(page_driver.open_browser()) if options.browser else None
        client = Client(server.address, verbose=False)
        config = recipe.with_fixed_defaults(configuration(options))
        run_id = client.predict(config, False, api_name="/start_run")["run_id"]
        run = RunDirectory(runs_dir / run_id)
        if browser is not None:
            page_driver.open_page(browser, f"{server.address}/run?id={run_id}")
        server_cpu, own_cpu = CpuMeter(server.process.pid), CpuMeter(os.getpid())
        with viewers(f"{server.address}/live/runs/{run_id}/stream?since=-1", num_clients) as seen_by_each:
            wait_for_end(run)
            percents = server_cpu.percent(), own_cpu.percent()
            everything = list(events.read_all(run.events))
            wait_until_seen(seen_by_each, len(everything))
        if (status := liveness.read_status(run)).state != "finished":
            raise RuntimeError(f"the run did not finish: {status}")
    steps = [(event["step"], event["time_unix_s"]) for event in everything if event["kind"] == "step"]
    return {
        "steps_per_s": outcome_of(steps, {}).steps_per_s,
        "server_percent_of_a_core": percents[0],
        "viewers_percent_of_a_core": percents[1],
    }


async def read_stream(client: httpx.AsyncClient, address: str, seen: Seen) -> None:
    """Read a run's stream until cancelled. Append each message's cursor and time of arrival."""
    async with client.stream("GET", address) as response:
        response.raise_for_status()
        cursor = -1
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                cursor = int(line.removeprefix("id: "))
            elif line == "" and cursor >= 0:
                seen.append((cursor, time.time() * 1000))


@contextlib.contextmanager
def viewers(address: str, count: int) -> Iterator[list[Seen]]:
    """Read a stream with this number of clients until the block ends. Yield what each has received so far."""
    seen_by_each: list[Seen] = [[] for _ in range(count)]
    is_over = threading.Event()

    async def read_all() -> None:
        async with httpx.AsyncClient(timeout=None) as client, asyncio.TaskGroup() as group:  # noqa: S113
            readers = [group.create_task(read_stream(client, address, seen)) for seen in seen_by_each]
            while not is_over.is_set():
                await asyncio.sleep(POLL_EVERY_S)
            for reader in readers:
                reader.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(read_all()))
    thread.start()
    try:
        yield seen_by_each
    finally:
        is_over.set()
        thread.join()


def wait_until_seen(seen_by_each: list[Seen], num_events: int) -> None:
    """Wait until every viewer has received a run's last event.

    Raises:
        RuntimeError: a viewer has not received it after CATCH_UP_S.
    """
    deadline = time.monotonic() + CATCH_UP_S
    while not all(seen and seen[-1][0] >= num_events for seen in seen_by_each):
        if time.monotonic() > deadline:
            last = [seen[-1][0] if seen else None for seen in seen_by_each]
            raise RuntimeError(f"of {num_events} events the viewers have seen {last}")
        time.sleep(POLL_EVERY_S)


if __name__ == "__main__":
    main()
