"""Runs are forwarded to the real TensorBoard, Trackio, MLflow and W&B, killed in between, and read back.

Each test is skipped where its library is missing: together they need 800 MB. `pip install tensorboard==2.21.0
trackio==0.43.0 mlflow==3.17.2 wandb==0.31.0` in a copy of the environment runs all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forwarded_run import append, end, make_run, steps
from tests.harness import REPOSITORY, run_to_end, wait_until
from tools.page_driver import free_port
from trainers.contract.rundir import RunDirectory
from trainers.forward import state as state_module
from trainers.forward import wandb

NUM_STEPS = 4000
PATIENCE_S = 180.0


def forward_with_kills(run: RunDirectory, tracker: str, **variables: str) -> None:
    """Forward a live run to its end by three processes, of which two are killed."""
    lock = run.acquire_lock()
    for last in (NUM_STEPS // 2, NUM_STEPS):
        process = subprocess.Popen(program(run), cwd=REPOSITORY, env=os.environ | variables)
        append(run, steps(last - NUM_STEPS // 2 + 1, last))
        size = run.events.stat().st_size
        wait_until("all of it", lambda size=size: position(run, tracker) == size, PATIENCE_S)  # type: ignore[misc]
        process.kill()
        process.wait()
    if tracker in ("mlflow", "trackio"):  # as if killed before it has written the position
        state = state_module.read(run, tracker)
        assert state is not None
        state.offset = run.events.read_bytes().index(b"\n", state.offset // 2) + 1
        state_module.write(run, tracker, state)
    end(run)
    os.close(lock)
    code, output = run_to_end(program(run), PATIENCE_S, variables)
    assert code == 0 and "forwarded completely" in output, output


def program(run: RunDirectory) -> list[str]:
    return [sys.executable, "-m", "trainers.forward", str(run.path)]


def position(run: RunDirectory, tracker: str) -> int:
    found = state_module.read(run, tracker)
    return 0 if found is None else found.offset


@contextlib.contextmanager
def served(command: list[str], port: int, **variables: str) -> Iterator[None]:
    """Serve a tracker until its port answers; end it afterwards."""
    process = subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until("its port", lambda: answers(port), PATIENCE_S)
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_tensorboard_files_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="55 MB installed: pip install -r requirements-tensorboard.txt")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(tmp_path, 0, state="running", forward_to="tensorboard")
    forward_with_kills(run, "tensorboard")
    read = EventAccumulator(
        str(run.path / "forward" / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}
    ).Reload()
    losses = read.Scalars("train/loss")
    assert [each.step for each in losses] == list(range(1, NUM_STEPS + 1))
    assert losses[9].value == pytest.approx(0.1) and losses[9].wall_time == pytest.approx(1_700_000_001.0)
    assert [each.step for each in read.Scalars("validation/accuracy")] == list(range(10, NUM_STEPS + 1, 10))
    texts = [each.tensor_proto.string_val[0] for each in read.Tensors("state")]
    assert texts == [b"running: Training.", b"finished: Over."]
    assert b"| batch_size | 64 |" in read.Tensors("configuration")[0].tensor_proto.string_val[0]
    assert "_hparams_/session_start_info" in read.Tags()["tensors"]


def test_mlflow_server_has_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="640 MB installed, only for its server")
    port, database = free_port(), tmp_path / "mlflow.db"
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    address = f"http://127.0.0.1:{port}"
    run = make_run(tmp_path / "runs", 0, state="running", forward_to="mlflow", forward_address=address)
    with served([*command, "--backend-store-uri", f"sqlite:///{database}"], port):
        forward_with_kills(run, "mlflow")
        with sqlite3.connect(database) as stored:
            losses = stored.execute("SELECT step, value FROM metrics WHERE key = 'train/loss' ORDER BY step")
            assert losses.fetchall() == [(step, 1 / step) for step in range(1, NUM_STEPS + 1)]
            runs = stored.execute("SELECT name, status FROM runs").fetchall()
            size = stored.execute("SELECT value FROM params WHERE key = 'batch_size'").fetchall()
    assert runs == [("mine", "FINISHED")] and size == [("64",)]


def test_trackio_server_has_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="pip install -r requirements-trackio.txt")
    port = free_port()
    show = f"import trackio; trackio.show(server_port={port}, open_browser=False, block_thread=True)"
    variables = {"TRACKIO_DIR": str(tmp_path / "trackio"), "TRACKIO_WRITE_TOKEN": "word"}
    address = f"http://127.0.0.1:{port}"
    run = make_run(tmp_path / "runs", 0, state="running", forward_to="trackio", forward_project="demo")
    with served([sys.executable, "-c", show], port, **variables):
        forward_with_kills(run, "trackio", TRACKIO_SERVER_URL=address, TRACKIO_WRITE_TOKEN="word")
        body = json.dumps({"args": [], "kwargs": {"project": "demo", "run": "mine"}}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/api/get_logs", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.loads(answer.read())["data"]
    check_trackio(tmp_path / "trackio" / "demo.db")


def test_trackio_database_has_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="pip install -r requirements-trackio.txt")
    run = make_run(tmp_path / "runs", 0, state="running", forward_to="trackio", forward_project="demo")
    forward_with_kills(run, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    check_trackio(tmp_path / "trackio" / "demo.db")


def check_trackio(database: Path) -> None:
    with sqlite3.connect(database) as stored:
        rows = [(step, json.loads(row)) for step, row in stored.execute("SELECT step, metrics FROM metrics")]
    losses = [(step, row["train/loss"]) for step, row in rows if "train/loss" in row]
    assert sorted(losses) == [(step, 1 / step) for step in range(1, NUM_STEPS + 1)]
    assert [row["state"] for _, row in rows if "state" in row] == ["running: Training.", "finished: Over."]


def test_wandb_offline_files_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="75 MB installed: pip install -r requirements-wandb.txt")
    from wandb.proto.wandb_internal_pb2 import Record

    run = make_run(tmp_path / "runs", 0, state="running", forward_to="wandb")
    forward_with_kills(run, "wandb", WANDB_CACHE_DIR=str(tmp_path), WANDB_CONFIG_DIR=str(tmp_path))
    rows: dict[int, dict[str, Any]] = {}
    exits = []
    for file in sorted(run.path.glob("forward/wandb/offline-run-*/run-*.wandb")):
        for content in wandb.records(file.read_bytes()):
            record = Record.FromString(content)
            if record.HasField("history"):
                row = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                rows[row["_step"]] = row
            if record.HasField("exit"):
                exits.append(record.exit.exit_code)
    losses = [(row["step"], row["train/loss"]) for _, row in sorted(rows.items()) if "train/loss" in row]
    assert losses == [(step, 1 / step) for step in range(1, NUM_STEPS + 1)]
    assert (
        exits[-1] == 0 and [row["state"] for row in rows.values() if "state" in row][-1] == "finished: Over."
    )
