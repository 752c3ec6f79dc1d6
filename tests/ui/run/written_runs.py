"""Synthetic runs with the data that the tests of charts need."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from tests.made_run import make_finished
from trainers.contract import config
from trainers.contract.events import EventFile, encode_event
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.files import json_files

NUM_IMAGES = 12
NAMES = ("Trouser", "Ankle boot", "T-shirt/top")
TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune. " * 4


def images() -> dict[str, Any]:
    """Return an image sample with class names of the length of Fashion-MNIST's."""
    pixels = base64.b64encode(bytes(range(196)) * 4).decode()
    return {
        "type": "images",
        "content": [
            {
                "pixels": pixels,
                "width": 28,
                "height": 28,
                "label": NAMES[index % 3],
                "prediction": NAMES[(index + (index % 4 == 0)) % 3],
                "probability": 0.98,
            }
            for index in range(NUM_IMAGES)
        ],
    }


def text() -> dict[str, Any]:
    return {"type": "text", "content": TEXT}


def ended_run(path: Path, num_steps: int, sample: dict[str, Any]) -> RunDirectory:
    run = make_finished(RunDirectory(path), num_steps)
    file = EventFile(run.events)
    file.append([(time.time(), "sample", {"step": num_steps, **sample})])
    file.close()
    return run


def diverged_run(path: Path, *, num_finite: int, num_steps: int) -> RunDirectory:
    """Write a finished run whose loss is NaN after its first steps."""
    steps = [_step(number, 10.0**number, num_finite) for number in range(1, num_steps + 1)]
    return _write(path, {"learning_rate": 5.0, "name": "diverged"}, num_steps, steps)


def _step(number: int, loss: float, num_finite: int) -> tuple[str, dict[str, Any]]:
    return "step", {
        "step": number,
        "epoch": number // 16,
        "loss": loss if number <= num_finite else None,
        "lr": 5.0,
        "grad_norm": 1.0 if number == 1 else None,
        "samples_per_s": 640.0,
        "step_time_s": 0.1,
        "data_time_s": 0.001,
    }


def _write(
    path: Path, values: dict[str, Any], num_steps: int, found: list[tuple[str, dict[str, Any]]]
) -> RunDirectory:
    """Write a run that finished after these events."""
    run = RunDirectory(path)
    for folder in (run.path, run.logs, run.checkpoints):
        folder.mkdir(parents=True)
    settings = config.parse({"dataset": "digits", "model": "mlp", "device": "cpu"} | values)
    json_files.write_json_atomically(run.config, settings.to_json())
    plan = {"num_train": 1000, "num_validation": 100, "num_parameters": 9000, "global_batch": 64}
    plan |= {"steps_per_epoch": 16, "num_steps": num_steps, "all_reduce": "gloo"}
    states = [("state", {"state": state, "reason": ""}) for state in ("running", "finished")]
    began = time.time() - 60
    lines = [
        encode_event({"seq": seq, "time_unix_s": began + seq * 0.1, "kind": kind, **fields}) + b"\n"
        for seq, (kind, fields) in enumerate([("plan", plan), states[0], *found, states[1]])
    ]
    run.events.write_bytes(b"".join(lines))
    run.write_status(Status(state="finished", exit_code=0, started_unix_s=began, ended_unix_s=time.time()))
    run.lock.touch()
    return run


NUM_NODES, RANKS_A_NODE = 3, 8


def run_of_nodes(path: Path) -> RunDirectory:
    """Write a finished run on several machines, in which rank 2 of the second machine is slow and idle."""
    slow = RANKS_A_NODE + 2
    ranks = range(NUM_NODES * RANKS_A_NODE)
    devices = [
        {
            "rank": rank,
            "node": rank // RANKS_A_NODE,
            "kind": "cpu",
            "index": 0,
            "name": "a processor",
            "utilization_percent": 40.0 if rank == slow else 90.0,
            "memory_used_bytes": 10**9,
            "memory_total_bytes": 10**11,
            "temperature_celsius": None,
            "power_watts": None,
            **({"host": f"pc{rank // RANKS_A_NODE}"} if rank % RANKS_A_NODE == 0 else {}),
        }
        for rank in ranks
    ]
    parts = {"data_time_s": 0.01, "forward_time_s": 0.02, "backward_time_s": 0.02, "optimizer_time_s": 0.01}
    times = [
        {"rank": rank, "step": 5, "step_time_s": 0.1, **parts, "wait_time_s": 0.0 if rank == slow else 0.04}
        for rank in ranks
    ]
    found: list[tuple[str, dict[str, Any]]] = []
    for number in range(1, 6):
        found += [_step(number, 1.0, 5), ("devices", {"devices": devices}), ("ranks", {"ranks": times})]
    return _write(path, {"num_nodes": NUM_NODES, "nproc_per_node": RANKS_A_NODE}, 5, found)
