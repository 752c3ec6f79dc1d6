"""Generate a synthetic run: a directory with the real file formats and random, noisy numbers.

    python -m tests.made_run RUN_DIR STEPS

The process of `live_run`: holds the run's lock like a supervisor, and appends four step events per second and
one event of devices and ranks per second until SIGTERM. It prints `ready` once the history is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tools.page_driver import REPOSITORY
from trainers.contract import config, events
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory, Status
from trainers.contract.status import process_handle
from trainers.files import json_files

HISTORY_STEPS_PER_S = 100.0
UPDATES_PER_S = 4.0
NUM_RANKS = 2
# Relative jitter of the pause between updates, so that updates do not align with a reader's polling.
JITTER = 0.3
NUM_EVALUATIONS = 40
BATCH_SIZE = 32
STEPS_PER_EPOCH = 23
REASON = "Made up by a benchmark: none of these numbers was trained."


def main() -> None:
    """Generate the live run that the command line names."""
    # Installed before the history is written, so that an early SIGTERM also exits cleanly.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path, num_steps = sys.argv[1:]
    _go_on_live(RunDirectory(Path(path)), int(num_steps))


@contextlib.contextmanager
def live_run(path: Path, num_steps: int) -> Iterator[RunDirectory]:
    """Generate a run of `num_steps` steps that receives four updates per second until the block ends."""
    command = [sys.executable, "-m", "tests.made_run", str(path), str(num_steps)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"ready":
            raise RuntimeError(f"the made-up run did not begin (exit code {process.wait()})")
        yield RunDirectory(path)
    finally:
        process.terminate()
        process.wait(timeout=30)


def make_finished(run: RunDirectory, num_steps: int, *, num_ranks: int = NUM_RANKS) -> RunDirectory:
    """Write a run of `num_steps` steps that has just finished, and return it."""
    began = time.time() - num_steps / HISTORY_STEPS_PER_S
    _create(run, num_steps, num_ranks)
    _write_history(run, num_steps, num_steps, began, num_ranks)
    file = EventFile(run.events)
    file.append([(time.time(), "state", {"state": "finished", "reason": REASON})])
    file.close()
    run.write_status(_status("finished", began, exit_code=0))
    return run


def _go_on_live(run: RunDirectory, num_steps: int) -> None:
    """Write a run of `num_steps` steps, then append events until SIGTERM."""
    began = time.time() - num_steps / HISTORY_STEPS_PER_S
    planned = num_steps + max(1_000, num_steps // 10)
    _create(run, planned, NUM_RANKS)
    lock = run.acquire_lock()
    run.write_status(_status("running", began))
    _write_history(run, num_steps, planned, began, NUM_RANKS)
    file = EventFile(run.events)
    try:
        print("ready", flush=True)
        _append_until_ended(file, num_steps)
    finally:
        file.append([(time.time(), "state", {"state": "stopped", "reason": REASON})])
        file.close()
        run.write_status(_status("stopped", began, exit_code=0))
        os.close(lock)


def _append_until_ended(file: EventFile, step: int) -> None:
    """Append a step event at each update, and devices and ranks once a second, each in a separate write."""
    chance = random.Random(step)
    next_step_at = next_look_at = time.monotonic()
    while True:
        time.sleep(max(0.0, min(next_step_at, next_look_at) - time.monotonic()))
        now = time.monotonic()
        if now >= next_step_at:
            step += 1
            fields = step_fields(step, 0.4 + chance.gauss(0.0, 0.03), chance.uniform(0.8, 1.2))
            file.append([(time.time(), "step", fields)])
            next_step_at += chance.uniform(1 - JITTER, 1 + JITTER) / UPDATES_PER_S
        if now >= next_look_at:
            unix_s = time.time()
            look = [("devices", _devices(chance, NUM_RANKS)), ("ranks", _ranks(step, chance, NUM_RANKS))]
            file.append((unix_s, kind, fields) for kind, fields in look)
            next_look_at += 1.0


def _create(run: RunDirectory, planned_steps: int, num_ranks: int) -> None:
    """Create the directory and its configuration. Fails if the directory exists."""
    run.path.mkdir(parents=True)
    run.logs.mkdir()
    run.checkpoints.mkdir()
    chosen = {
        "name": f"made up, {planned_steps} steps",
        "dataset": "digits",
        "model": "mlp",
        "nproc_per_node": num_ranks,
        "batch_size": BATCH_SIZE,
        "device": "cpu",
        "num_epochs": 100_000,
        "max_steps": planned_steps,
        "max_grad_norm": 1.0,
    }
    json_files.write_json_atomically(run.config, config.parse(chosen).to_json())


def _status(state: events.State, began_unix_s: float, exit_code: int | None = None) -> Status:
    return Status(
        state=state,
        handle=process_handle(os.getpid(), psutil.Process().create_time()),
        exit_code=exit_code,
        started_unix_s=began_unix_s,
        ended_unix_s=None if exit_code is None else time.time(),
    )


def _write_history(
    run: RunDirectory, num_steps: int, planned_steps: int, began_unix_s: float, num_ranks: int
) -> None:
    """Write the history directly, with the same lines as `EventFile`."""
    with run.events.open("w", encoding="utf-8") as file:
        lines = _history(num_steps, planned_steps, began_unix_s, num_ranks)
        file.writelines(f'{{"seq":{seq},"time_unix_s":{line}}}\n' for seq, line in enumerate(lines))


def _history(num_steps: int, planned_steps: int, began_unix_s: float, num_ranks: int) -> Iterator[str]:
    """Yield the lines from the time field on: steps, devices and ranks each second, periodic evaluations."""
    chance = random.Random(num_steps)
    yield _line(began_unix_s, "state", {"state": "starting", "reason": REASON})
    yield _line(began_unix_s, "plan", _plan(planned_steps, num_ranks))
    yield _line(began_unix_s, "state", {"state": "running", "reason": REASON})
    steps_a_second = round(HISTORY_STEPS_PER_S)
    steps_an_evaluation = max(10, num_steps // NUM_EVALUATIONS)
    for step, line in enumerate(_step_lines(num_steps, began_unix_s), start=1):
        yield line
        unix_s = began_unix_s + step / HISTORY_STEPS_PER_S
        if step % steps_a_second == 0:
            yield _line(unix_s, "devices", _devices(chance, num_ranks))
            yield _line(unix_s, "ranks", _ranks(step, chance, num_ranks))
        if step % steps_an_evaluation == 0:
            yield _line(unix_s, "eval", _evaluation(step, num_steps, chance))
            yield _line(unix_s, "checkpoint", _checkpoint(step))


def _step_lines(num_steps: int, began_unix_s: float) -> Iterator[str]:
    """Yield the step events. They are generated as arrays: a million take a few seconds."""
    chance = np.random.default_rng(num_steps)
    steps = np.arange(1, num_steps + 1)
    falling = 2.0 * np.exp(-5.0 * steps / num_steps) + 0.4
    columns = (
        steps,
        began_unix_s + steps / HISTORY_STEPS_PER_S,
        falling * chance.lognormal(0.0, 0.08, num_steps),
        0.002 * (1.0 - 0.9 * steps / num_steps),
        falling * chance.lognormal(0.0, 0.3, num_steps),
        6_400.0 * chance.lognormal(0.0, 0.05, num_steps),
        chance.lognormal(-4.6, 0.1, num_steps),
        chance.lognormal(-7.0, 0.3, num_steps),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for step, unix_s, loss, rate, norm, pace, step_s, data_s in rows:
        yield (
            f'{unix_s:.4f},"kind":"step","step":{step},"epoch":{step // STEPS_PER_EPOCH},"loss":{loss!r},'
            f'"lr":{rate!r},"grad_norm":{norm!r},"samples_per_s":{pace:.1f},"step_time_s":{step_s:.6f},'
            f'"data_time_s":{data_s:.6f}'
        )


def _line(unix_s: float, kind: str, fields: dict[str, Any]) -> str:
    return f'{unix_s:.4f},"kind":"{kind}",{json.dumps(fields, separators=(",", ":"))[1:-1]}'


def step_fields(step: int, loss: float, factor: float) -> dict[str, Any]:
    """Return the fields of one synthetic step event."""
    return {
        "step": step,
        "epoch": step // STEPS_PER_EPOCH,
        "loss": loss,
        "lr": 0.0002,
        "grad_norm": loss * factor,
        "samples_per_s": round(6_400.0 * factor, 1),
        "step_time_s": round(0.01 / factor, 6),
        "data_time_s": round(0.001 / factor, 6),
    }


def _plan(planned_steps: int, num_ranks: int) -> dict[str, Any]:
    return {
        "num_train": 1_437,
        "num_validation": 360,
        "num_parameters": 9_000,
        "num_trained": 9_000,
        "global_batch": num_ranks * BATCH_SIZE,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "num_steps": planned_steps,
        "class_names": [str(digit) for digit in range(10)],
        "all_reduce": "shared_memory",
        "dealing": {
            "step": 0,
            "epoch": 0,
            "samples_in_epoch": 0,
            "batch_size": BATCH_SIZE,
            "num_accumulated": 1,
            "num_replicas": num_ranks,
        },
        "trivial": None,
        "start": None,
    }


def _devices(chance: random.Random, num_ranks: int) -> dict[str, Any]:
    return {
        "devices": [
            {
                "rank": rank,
                "node": 0,
                "kind": "cpu",
                "index": rank,
                "name": "made up",
                "utilization_percent": round(chance.uniform(80, 99), 1),
                "memory_used_bytes": 300_000_000 + chance.randrange(20_000_000),
                "memory_total_bytes": 16_000_000_000,
                "temperature_celsius": None,
                "power_watts": None,
            }
            for rank in range(num_ranks)
        ],
        "others_cpu_percent": round(chance.uniform(0, 9), 1),
        "idle_cpu_percent": round(chance.uniform(0, 5), 1),
    }


def _ranks(step: int, chance: random.Random, num_ranks: int) -> dict[str, Any]:
    return {
        "ranks": [
            {
                "rank": rank,
                "step": step,
                "step_time_s": round(0.01 * chance.uniform(0.9, 1.1), 6),
                "data_time_s": round(0.001 * chance.uniform(0.9, 1.1), 6),
                "forward_time_s": round(0.003 * chance.uniform(0.9, 1.1), 6),
                "backward_time_s": round(0.004 * chance.uniform(0.9, 1.1), 6),
                "optimizer_time_s": round(0.0005 * chance.uniform(0.9, 1.1), 6),
                "wait_time_s": round(0.001 * chance.uniform(0.5, 1.5), 6),
                "all_reduce_time_s": round(0.002 * chance.uniform(0.9, 1.1), 6),
                "hidden_time_s": 0.0,
                "doing": "in forward and backward",
                "base_memory_bytes": 320_000_000,
                "peak_memory_bytes": 330_000_000,
                "parameter_bytes": 5_000_000,
                "gradient_bytes": 5_000_000,
                "optimizer_bytes": 10_000_000,
                "loss": None,
            }
            for rank in range(num_ranks)
        ]
    }


def _evaluation(step: int, num_steps: int, chance: random.Random) -> dict[str, Any]:
    share = step / num_steps
    accuracy = 0.5 + 0.45 * share**0.5 + chance.uniform(-0.01, 0.01)
    loss = 2.5 - 2.0 * share**0.5
    right = round(36 * accuracy)
    confusion = [[right if said == truth else (36 - right) // 9 for said in range(10)] for truth in range(10)]
    return {
        "step": step,
        "epoch": step // STEPS_PER_EPOCH,
        "loss": loss,
        "metrics": {"accuracy": accuracy},
        "confusion": confusion,
    }


def _checkpoint(step: int) -> dict[str, Any]:
    """Return the event of a checkpoint whose folder was already removed."""
    return {
        "step": step,
        "path": f"checkpoints/step_{step}",
        "size_bytes": 110_000,
        "duration_s": 0.05,
        "stall_s": 0.001,
        "reason": "schedule",
        "removed": [step],
    }


if __name__ == "__main__":
    main()
