"""Steps per second of this project's job, including the page, compared with common alternatives.

    python -m benchmarks.compare [--rounds 7] [--cases mlp,cnn] [--rivals bare,accelerate,lightning]
                                 [--rivals-python .venv-bench/bin/python] [--json FILE]

In each round every contender trains the same model with the same data, batch, optimizer and seed on two CPU
ranks of one thread. Contenders run one after the other, in an order that rotates between rounds. Ours is
started on a served page and watched in a real Chromium; the rivals are started by torchrun. Rates are
wall-clock rates over the last three quarters of the steps. A ratio compares two contenders of one round.

Accelerate and Lightning need a separate environment: requirements.txt and requirements-bench.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradio_client import Client

from benchmarks.cases import CASES, COMPARED_WITH_ALL, Case
from benchmarks.machine import Conditions, summary
from benchmarks.unwatched_worker import WARM_UP_SHARE
from ddp_gui.plan import recipe
from tools import page_driver
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness

NUM_RANKS = 2
LEARNING_RATE = 1e-3
SEED = 0
NEVER = 10**9
# Rounding errors depend on the order of sums and grow with each step, so only these losses are compared.
COMPARED_STEPS = 100
JOB_TIMEOUT_S = 600.0
OURS = "ours"
RIVALS = {
    "bare": "benchmarks.rivals.bare",
    "accelerate": "benchmarks.rivals.with_accelerate",
    "lightning": "benchmarks.rivals.with_lightning",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one contender in one round."""

    steps_per_s: float
    first_step_unix_s: float
    losses: dict[int, float]
    finished_after_s: float = 0.0
    gone_after_s: float = 0.0


def main() -> None:
    """Measure all rounds, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default=",".join(COMPARED_WITH_ALL), help="of: " + ", ".join(CASES))
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--rivals-python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    conditions = Conditions.note()
    rivals = options.rivals.split(",")
    found: dict[str, Any] = {}
    for name in options.cases.split(","):
        rounds = [
            play(CASES[name], rivals, options.rivals_python, number) for number in range(options.rounds)
        ]
        found[name] = figures(rounds, rivals)
        print(table(name, found[name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"cases": found, **conditions.report()}, indent=2) + "\n")


def play(case: Case, rivals: Sequence[str], python: str, number: int) -> dict[str, Outcome]:
    """Let every contender train once. `number` rotates the order."""
    contenders = [OURS, *rivals]
    first = number % len(contenders)
    outcomes = {}
    for contender in contenders[first:] + contenders[:first]:
        with tempfile.TemporaryDirectory() as folder:
            if contender == OURS:
                outcomes[contender] = play_ours(case, Path(folder) / "runs")
            else:
                outcomes[contender] = play_rival(case, RIVALS[contender], python, Path(folder))
        print(
            f"{case.model}, round {number + 1}: {contender} {outcomes[contender].steps_per_s:.1f} steps/s",
            file=sys.stderr,
            flush=True,
        )
    return outcomes


def play_ours(case: Case, runs_dir: Path) -> Outcome:
    """Start the run on a served page, watch it in a browser until its end, and read its events."""
    config = {
        "model": case.model,
        "model_size": case.size,
        "dataset": case.dataset,
        "batch_size": case.batch_size,
        "learning_rate": LEARNING_RATE,
        "optimizer": "adamw",
        "weight_decay": 0.0,
        "seed": SEED,
        "nproc_per_node": NUM_RANKS,
        "device": "cpu",
        "num_epochs": 100_000,
        "max_steps": case.num_steps,
        # The rivals do neither.
        "eval_every_steps": NEVER,
        "checkpoint_every_steps": NEVER,
    }
    with watched_page(runs_dir) as (address, page):
        # The rivals train at a constant rate.
        config = recipe.with_fixed_defaults(config)
        run_id = Client(address, verbose=False).predict(config, False, api_name="/start_run")["run_id"]
        page.goto(f"{address}/run?id={run_id}")
        run = RunDirectory(runs_dir / run_id)
        wait_for_end(run)
        status = liveness.read_status(run)
        if status.state != "finished" or status.ended_unix_s is None:
            raise RuntimeError(f"the run did not finish: {status}")
        everything = list(events.read_all(run.events))
        steps = [event for event in everything if event["kind"] == "step"]
    outcome = outcome_of(
        [(event["step"], event["time_unix_s"]) for event in steps],
        {event["step"]: event["loss"] for event in steps},
    )
    # Includes the evaluation and the checkpoint at the end, which the rivals do not have.
    over = steps[-1]["time_unix_s"]
    return replace(
        outcome,
        finished_after_s=everything[-1]["time_unix_s"] - over,
        gone_after_s=status.ended_unix_s - over,
    )


@contextlib.contextmanager
def watched_page(runs_dir: Path) -> Iterator[tuple[str, Any]]:
    """Serve the page and open it in a browser."""
    with page_driver.serve(runs_dir) as server, page_driver.open_browser() as browser:
        yield server.address, page_driver.open_page(browser, server.address)


def wait_for_end(run: RunDirectory) -> None:
    """Wait until a run has ended.

    Raises:
        TimeoutError: it takes longer than JOB_TIMEOUT_S.
    """
    deadline = time.monotonic() + JOB_TIMEOUT_S
    while not run.status.exists() or liveness.read_status(run).state in events.LIVE_STATES:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{run.path} has not ended")
        time.sleep(0.5)


def play_rival(case: Case, module: str, python: str, folder: Path, num_steps: int | None = None) -> Outcome:
    """Start a rival by torchrun and read its measurements."""
    out = folder / "noted.json"
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS)]
    command += ["-m", module, "--out", str(out), "--model", case.model, "--model-size", case.size]
    command += ["--dataset", case.dataset, "--batch-size", str(case.batch_size), "--seed", str(SEED)]
    command += ["--learning-rate", str(LEARNING_RATE), "--steps", str(num_steps or case.num_steps)]
    job = subprocess.run(
        command,
        cwd=page_driver.REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )
    if not out.exists():
        raise RuntimeError(f"{module} ended with {job.returncode}: {job.stderr[-3000:]}")
    if job.returncode:
        # A finished gloo rank may abort at exit, as in many tutorials; its steps still count.
        print(f"{module} was done, then ended with {job.returncode}", file=sys.stderr)
    noted = json.loads(out.read_text())
    return outcome_of(
        list(enumerate(noted["step_ended_unix_s"], start=1)), dict(enumerate(noted["losses"], start=1))
    )


def outcome_of(steps: list[tuple[int, float]], losses: dict[int, float]) -> Outcome:
    """Return the rate after the warm-up. Steps that were reported together end with the last of them."""
    ended: dict[float, int] = {}
    for step, moment in steps:
        ended[moment] = max(step, ended.get(moment, 0))
    last_step = max(ended.values())
    counted = [(step, moment) for moment, step in ended.items() if step >= WARM_UP_SHARE * last_step]
    (first, began), (last, over) = min(counted), max(counted)
    return Outcome(steps_per_s=(last - first) / (over - began), first_step_unix_s=min(ended), losses=losses)


def figures(rounds: list[dict[str, Outcome]], rivals: Sequence[str]) -> dict[str, Any]:
    """Return the contenders' rates, the ratios to the rivals, and differences from the bare losses."""
    found: dict[str, Any] = {
        "steps_per_s": {
            name: summary([played[name].steps_per_s for played in rounds]) for name in [OURS, *rivals]
        },
        "ratio_to": {
            name: summary([played[OURS].steps_per_s / played[name].steps_per_s for played in rounds])
            for name in rivals
        },
    }
    found["last_step_to_finished_s"] = summary([played[OURS].finished_after_s for played in rounds])
    found["last_step_to_no_process_s"] = summary([played[OURS].gone_after_s for played in rounds])
    if "bare" in rivals:
        found["loss_differences_from_bare"] = {
            "largest_of_the_first_steps": max(
                abs(played[OURS].losses[step] - played["bare"].losses[step])
                for played in rounds
                for step in range(1, COMPARED_STEPS + 1)
            ),
            "largest_of_the_last_steps_mean": max(
                abs(mean_of_the_last(played[OURS]) - mean_of_the_last(played["bare"])) for played in rounds
            ),
            "mean_of_the_last_steps": mean_of_the_last(rounds[-1][OURS]),
        }
    return found


def mean_of_the_last(outcome: Outcome) -> float:
    """Return the mean loss of the last steps."""
    last = sorted(outcome.losses)[-COMPARED_STEPS:]
    return statistics.fmean(outcome.losses[step] for step in last)


def table(name: str, found: dict[str, Any]) -> str:
    """Return the figures of a case as Markdown."""
    lines = [f"\n| {name} | steps/s, median (spread) | ours against it |", "|---|---|---|"]
    for contender, rate in found["steps_per_s"].items():
        ratio = found["ratio_to"].get(contender)
        against = f"{ratio['median']:.2f} × ({ratio['min']:.2f}–{ratio['max']:.2f})" if ratio else ""
        lines.append(
            f"| {contender} | {rate['median']:.0f} ({rate['min']:.0f}–{rate['max']:.0f}) | {against} |"
        )
    finished, gone = found["last_step_to_finished_s"], found["last_step_to_no_process_s"]
    lines.append(
        f"\nLast step to finished, evaluated and saved: {finished['median']:.2f} s, at most "
        f"{finished['max']:.2f} s; to no process left: {gone['median']:.2f} s."
    )
    if "loss_differences_from_bare" in found:
        apart = found["loss_differences_from_bare"]
        first, last = apart["largest_of_the_first_steps"], apart["largest_of_the_last_steps_mean"]
        lines.append(
            f"\nLosses against the bare script's: at most {first:.1e} apart in each of the first "
            f"{COMPARED_STEPS} steps; {last:.1e} in the mean of the last {COMPARED_STEPS}, which is "
            f"{apart['mean_of_the_last_steps']:.4f}."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
