"""Generate synthetic run directories in the real file formats, to measure the list of runs.

The name of each run contains "made up". No process belongs to any of them.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainers.contract import config as config_module
from trainers.contract.events import State, encode_event
from trainers.contract.rundir import RunDirectory, Status

CHOICES = (
    ("fashion_mnist", "cnn"), ("fashion_mnist", "mlp"), ("fashion_mnist", "resnet"), ("digits", "mlp"),
    ("digits", "linear"), ("austen", "gpt"), ("iris", "tabular_mlp"), ("wine", "linear"),
)  # fmt: skip
ENDINGS: tuple[State, ...] = ("finished", "finished", "finished", "stopped", "failed")
STEP_TIME_S = 0.02
BETWEEN_RUNS_S = 600.0


def make(folder: Path, num_runs: int, num_steps: int) -> list[str]:
    """Generate consecutive runs, the last of which has just ended; return their IDs."""
    chance = random.Random(0)
    began = time.time() - num_runs * BETWEEN_RUNS_S
    return [
        make_one(folder, number, num_steps, began + number * BETWEEN_RUNS_S, chance)
        for number in range(num_runs)
    ]


def make_one(folder: Path, number: int, num_steps: int, began: float, chance: random.Random) -> str:
    """Generate one run directory and return its ID."""
    dataset, model = chance.choice(CHOICES)
    values = {
        "dataset": dataset,
        "model": model,
        "name": f"made up {number} {chance.choice(('warm', 'cold', 'wide', 'deep'))}",
        "nproc_per_node": chance.choice((1, 2, 4, 8)),
        "learning_rate": chance.choice((0.1, 0.01, 0.002, 0.0005)),
        "batch_size": chance.choice((16, 32, 64)),
        "seed": number,
    }
    run = RunDirectory(folder / f"made_up-{dataset}-{model}-{number}")
    for path in (run.path, run.logs, run.checkpoints):
        path.mkdir(parents=True)
    run.config.write_bytes(_as_json(config_module.parse(values).to_json()))
    ending = chance.choice(ENDINGS)
    lines = []
    for seq, (time_unix_s, kind, fields) in enumerate(_happened(num_steps, began, ending, chance)):
        lines.append(encode_event({"seq": seq, "time_unix_s": round(time_unix_s, 4), "kind": kind, **fields}))
    run.events.write_bytes(b"\n".join(lines) + b"\n")
    ended = began + num_steps * STEP_TIME_S + 2
    status = Status(state=ending, exit_code=int(ending == "failed"), started_unix_s=began, ended_unix_s=ended)
    run.status.write_bytes(_as_json(asdict(status)))
    run.lock.touch()
    return run.run_id


def _happened(
    num_steps: int, began: float, ending: State, chance: random.Random
) -> Iterator[tuple[float, str, dict[str, Any]]]:
    plan = {"num_train": 8000, "num_validation": 2000, "num_parameters": 52_000, "global_batch": 128}
    yield began, "state", {"state": "starting", "reason": "torchrun is starting the ranks"}
    yield began + 1, "plan", plan | {"steps_per_epoch": 63, "num_steps": num_steps}
    yield began + 1, "state", {"state": "running", "reason": ""}
    best, speed = 0.5 + 0.45 * chance.random(), 20 + 200 * chance.random()
    for step in range(1, num_steps + 1):
        now = began + 1 + step * STEP_TIME_S
        loss = 0.2 + 2.1 * math.exp(-step / speed) + 0.08 * chance.random()
        yield now, "step", {
            "step": step, "epoch": step // 63, "loss": loss, "lr": 0.002,
            "grad_norm": 1 / step if step % 10 == 0 else None,
            "samples_per_s": 6400.0 * (1 + 0.1 * chance.random()), "step_time_s": STEP_TIME_S,
            "data_time_s": 0.001,
        }  # fmt: skip
        if step % 63 == 0:
            accuracy = best * (1 - math.exp(-step / speed))
            yield (
                now,
                "eval",
                {"step": step, "epoch": step // 63, "loss": loss + 0.1, "metrics": {"accuracy": accuracy}},
            )
    yield began + 2 + num_steps * STEP_TIME_S, "state", {"state": ending, "reason": "made up"}


def _as_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()
