"""The live routes: a run's numbers as Server-Sent Events, a poll with the same encoder, views and logs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response, StreamingResponse

from ddp_gui import machine
from ddp_gui.catalogue import Catalogue
from ddp_gui.plan import shown_run_dir
from ddp_gui.runs import RunStore, RunView
from trainers.contract import events
from trainers.contract.rundir import shell_words, torchrun_command

LOOK_EVERY_S = 0.02
SEND_EVERY_S = 0.08
HEAD_EVERY_S = 1.0
MAX_MARKS = 200
MAX_DELTA_EVENTS = 2_000
LOG_BYTES = 64 * 1024

Payload = dict[str, Any]


def message_for(view: RunView, since: int, known_checkpoints: list[Any] | None = None) -> Payload:
    """Return what a client with the cursor `since` has not seen; a whole snapshot where it must."""
    with view.lock:
        view.catch_up()
        series = view.series
        behind = series.next_seq - since
        is_snapshot = since < 0 or behind > MAX_DELTA_EVENTS or behind < 0 or since <= series.rewound_at_seq
        first = 0 if is_snapshot else since
        message: Payload = {
            "type": "snapshot" if is_snapshot else "delta",
            "cursor": series.next_seq,
            "traces": series.snapshot() if is_snapshot else series.delta(since),
            "head": head(view),
            "marks": [mark for mark in series.marks[-MAX_MARKS:] if mark["seq"] >= first],
        }
        for kind in ("ranks", "devices", "sample"):
            newest = series.latest.get(kind)
            if newest is not None and newest["seq"] >= first:
                message[kind] = newest if kind == "sample" else newest[kind]
        checkpoints = view.checkpoints()
        if is_snapshot or checkpoints is not known_checkpoints:
            message["checkpoints"] = checkpoints
        return message


def head(view: RunView) -> dict[str, Any]:
    """Return the now-values of a run."""
    series, status, total_steps = view.series, view.status(), view.total_steps
    is_live = status.state in events.LIVE_STATES
    step = series.last_step.get("step", 0)
    pace = series.steps_per_s()
    is_training = status.state == "running" and pace is not None and total_steps is not None
    # Between a click on Resume and the first event of the new start no time is counted.
    is_under_way = is_live and series.state.get("state") in events.LIVE_STATES
    now = time.time() if is_under_way else None
    evaluation = series.evaluations.last
    return {
        "state": status.state,
        "reason": series.state.get("reason", ""),
        "error": series.problem.get("message") or status.error,
        "hint": series.problem.get("hint"),
        "rank": series.problem.get("rank"),
        "traceback": series.problem.get("traceback"),
        "step": step,
        "num_steps": total_steps,
        "epoch": series.last_step.get("epoch", 0),
        "num_epochs": view.config.num_epochs,
        "loss": series.last_step.get("loss"),
        "samples_per_s": series.last_step.get("samples_per_s"),
        "step_time_s": series.last_step.get("step_time_s"),
        "elapsed_s": round(series.active_s(now), 1),
        "eta_s": round((total_steps - step) / pace, 1) if is_training and pace and total_steps else None,
        "metrics": {
            name: None if value is None else float(f"{value:.5g}")
            for name, value in evaluation.get("metrics", {}).items()
        },
        "best": series.evaluations.best,
        "time_unix_s": series.newest_unix_s,
    }


def make_router(store: RunStore) -> APIRouter:
    """Return the routes below `/live/runs`."""
    router = APIRouter(prefix="/live/runs")

    def view_of(run_id: str) -> RunView:
        try:
            return store.view(run_id)
        except ValueError as error:
            raise HTTPException(status_code=404, detail=str(error)) from error

    @router.get("")
    def list_runs() -> list[dict[str, Any]]:
        return store.rows()

    @router.get("/{run_id}/summary")
    def summary(run_id: str) -> dict[str, Any]:
        view = view_of(run_id)
        view.catch_up()
        return _summary(view, store.catalogue_for(view.run, view.config))

    @router.get("/{run_id}/poll")
    def poll(run_id: str, since: int = -1) -> Response:
        return Response(_encode(message_for(view_of(run_id), since)), media_type="application/json")

    @router.get("/{run_id}/view")
    def zoomed(run_id: str, request: Request) -> dict[str, Any]:
        view = view_of(run_id)
        try:
            low, high = float(request.query_params["from"]), float(request.query_params["to"])
        except (KeyError, ValueError) as error:
            raise HTTPException(status_code=422, detail="from and to must be numbers of steps") from error
        with view.lock:
            view.catch_up()
            return {"traces": view.series.range(low, high)}

    @router.get("/{run_id}/log/{source}")
    def log(run_id: str, source: str, offset: int = -1) -> dict[str, Any]:
        run = view_of(run_id).run
        return _read_log(
            run.rank_log(int(source)) if source.isdecimal() else _named_log(run.logs, source), offset
        )

    @router.get("/{run_id}/stream")
    async def stream(run_id: str, request: Request, since: int = -1) -> StreamingResponse:
        view = await asyncio.to_thread(view_of, run_id)
        # After a broken connection the browser says by itself where it was.
        resumed_at = request.headers.get("last-event-id", "")
        cursor = int(resumed_at) if resumed_at.isdecimal() else since
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        messages = _messages(view, cursor, request.is_disconnected)
        return StreamingResponse(messages, media_type="text/event-stream", headers=headers)

    return router


async def _messages(view: RunView, cursor: int, is_disconnected: Callable[[], Any]) -> AsyncIterator[bytes]:
    """Yield a snapshot or what is missing, then what is new as it comes, until the run has ended."""
    checkpoints: list[Any] | None = None
    sent_at = 0.0
    sent_state = ""
    while not await is_disconnected():
        now = time.monotonic()
        if now - sent_at >= SEND_EVERY_S:
            state = view.status().state
            is_live = state in events.LIVE_STATES
            is_news = view.has_grown() or view.series.next_seq != cursor or state != sent_state
            if is_news or sent_at == 0.0 or (is_live and now - sent_at >= HEAD_EVERY_S):
                # In a thread: a long run's snapshot must not hold up everybody else.
                message = await asyncio.to_thread(message_for, view, cursor, checkpoints)
                cursor, sent_state, sent_at = message["cursor"], state, now
                checkpoints = message.get("checkpoints", checkpoints)
                yield f"id: {cursor}\ndata: {_encode(message)}\n\n".encode()
            elif not is_live:
                yield b"event: end\ndata: {}\n\n"
                return
        await asyncio.sleep(LOOK_EVERY_S)


def _summary(view: RunView, catalogue: Catalogue) -> dict[str, Any]:
    config = view.config
    dataset, model = catalogue.datasets.get(config.dataset), catalogue.models.get(config.model)
    strategy = catalogue.strategies.get(config.strategy)
    size = model.size(config.model_size) if model else None
    num_replicas = config.num_replicas(strategy.ranks_per_replica if strategy else "one")
    run_dir = shown_run_dir(view.run.path)
    said = view.series.plan  # nothing before training has begun
    expected_train = dataset.num_train if dataset else None
    num_train = said.get("num_train", expected_train)
    expected_size = size.num_parameters.get(config.dataset) if size else None
    return {
        "run_id": view.run.run_id,
        "config": config.to_json(),
        "model_label": model.label if model else config.model,
        "dataset_label": dataset.label if dataset else config.dataset,
        "num_parameters": said.get("num_parameters", expected_size),
        "task": dataset.task if dataset else None,
        "sample_unit": dataset.sample_unit if dataset else "samples",
        "num_train": num_train,
        "max_ranks": machine.look().max_ranks(config.device),
        "strategy_label": strategy.label if strategy else config.strategy,
        "num_replicas": num_replicas,
        "global_batch": config.global_batch(num_replicas),
        "steps_per_epoch": config.steps_per_epoch(num_train, num_replicas) if num_train else None,
        "num_steps": view.total_steps,
        "command": shell_words(torchrun_command(config, run_dir)),
        "run_dir": run_dir,
        "created_unix_s": view.run.config.stat().st_mtime,
    }


def _named_log(logs: Path, source: str) -> Path:
    if source not in ("torchrun", "supervisor"):
        raise HTTPException(status_code=404, detail="a log is a rank's number, torchrun or supervisor")
    return logs / f"{source}.log"


def _read_log(path: Path, offset: int) -> dict[str, Any]:
    """Return at most 64 kB of a log from `offset` on; -1 is its end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - LOG_BYTES) if offset < 0 or offset > size else offset
            file.seek(start)
            chunk = file.read(LOG_BYTES)
    except FileNotFoundError:
        return {"text": "", "offset": 0, "size": 0}
    return {"text": chunk.decode("utf-8", errors="replace"), "offset": start + len(chunk), "size": size}


def _encode(message: Payload) -> str:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False)
