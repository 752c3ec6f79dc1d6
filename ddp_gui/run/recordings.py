"""Recordings of steps: routes and Chrome traces."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from fastapi import HTTPException
from fastapi.responses import Response

from ddp_gui.background.workers import SLOW, Router, module_output
from ddp_gui.runs.runs import RunStore
from trainers.contract import recordings
from trainers.contract.rundir import RunDirectory, file_stem

# A larger recording is read by a low-priority process, because parsing holds the GIL.
MAX_IN_PROCESS_BYTES = 1024 * 1024

COMPUTING, ALL_REDUCES, ROUNDS, COLLECTIVES = range(4)
_THREADS = ("computing", "all-reduce of buckets", "rounds through shared memory", "other collectives")
_PART_LABELS = {"both": "forward and backward"}

SUCCEEDED, REFUSED = b"given", b"refused"

Recording = Mapping[str, Any]
TraceEvent = dict[str, Any]


def encode_recording(run: RunDirectory, step: int, *, as_trace: bool) -> bytes:
    """Return a recording as JSON, or as a Chrome trace if `as_trace`.

    Raises:
        OSError: if it does not exist or cannot be read.
        ValueError: if it is damaged.
    """
    if recordings.path_of(run, step).stat().st_size <= MAX_IN_PROCESS_BYTES:
        return _encode(run, step, as_trace=as_trace)
    arguments = [str(run.path), step, as_trace]
    outcome, _, answer = b"".join(module_output("ddp_gui.run.recordings", arguments)).partition(b"\n")
    if outcome == REFUSED:
        raise ValueError(answer.decode())
    return answer


def _encode(run: RunDirectory, step: int, *, as_trace: bool) -> bytes:
    recording = recordings.read(run, step)
    return orjson.dumps(trace_of(recording, run.run_id) if as_trace else recording)


def trace_of(recording: Recording, name: str) -> dict[str, Any]:
    """Return a recording as a Chrome trace with times in microseconds; `name` is the run's name."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": name, "clock": recording["clock"], "overlap": recording["numbers"]["overlap"]},
        "traceEvents": [event for rank in recording["ranks"] for event in _rank_events(recording, rank)],
    }


def _rank_events(recording: Recording, rank: Mapping[str, Any]) -> Iterator[TraceEvent]:
    pid = rank["rank"]
    yield _meta(pid, 0, "process_name", f"rank {pid}" + (f" on {rank['host']}" if rank["host"] else ""))
    yield _meta(pid, 0, "process_sort_index", pid)
    for tid, label in enumerate(_THREADS):
        yield _meta(pid, tid, "thread_name", label)
    for step in rank["steps"]:
        yield _span(pid, COMPUTING, f"step {step['step']}", step["began_s"], step["ended_s"], {})
        for part, began_s, ended_s in step["parts"]:
            label = _PART_LABELS.get(part, part)
            yield _span(pid, COMPUTING, label, began_s, ended_s, {"step": step["step"]})
        for all_reduce in step["all_reduces"]:
            yield from _all_reduce_events(recording, pid, all_reduce)
        for collective in step["collectives"]:
            size = {} if collective["bytes"] is None else {"bytes": collective["bytes"]}
            yield _span(
                pid, COLLECTIVES, collective["name"], collective["began_s"], collective["ended_s"], size
            )


def _all_reduce_events(recording: Recording, pid: int, all_reduce: Mapping[str, Any]) -> Iterator[TraceEvent]:
    number, buckets = all_reduce["bucket"], recording["buckets"]
    details: dict[str, Any] = {}
    if number < len(buckets):
        names = [parameter["name"] for parameter in buckets[number]["parameters"]]
        details = {"bytes": buckets[number]["bytes"], "parameters": names}
    yield _span(pid, ALL_REDUCES, f"bucket {number}", all_reduce["began_s"], all_reduce["ended_s"], details)
    for began_s, written_s, met_s, ended_s, size in all_reduce["rounds"]:
        yield _span(pid, ROUNDS, "write", began_s, written_s, {"bytes": size})
        yield _span(pid, ROUNDS, "wait for the others", written_s, met_s, {})
        yield _span(pid, ROUNDS, "add up", met_s, ended_s, {"bytes": size})


def _span(
    pid: int, tid: int, name: str, began_s: float, ended_s: float, arguments: dict[str, Any]
) -> TraceEvent:
    microseconds = {"ts": round(1e6 * began_s, 1), "dur": round(1e6 * max(0.0, ended_s - began_s), 1)}
    return {
        "ph": "X",
        "cat": _THREADS[tid],
        "name": name,
        "pid": pid,
        "tid": tid,
        **microseconds,
        "args": arguments,
    }


def _meta(pid: int, tid: int, name: str, value: str | int) -> TraceEvent:
    key = "sort_index" if name == "process_sort_index" else "name"
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}


def make_router(store: RunStore) -> Router:
    """Return the routes below `/live/runs/…/recordings`."""
    router = Router(prefix="/live/runs/{run_id}/recordings")

    def read(run_id: str, step: int, *, as_trace: bool = False) -> bytes:
        run = store.view(run_id).run
        try:
            return encode_recording(run, step, as_trace=as_trace)
        except FileNotFoundError as error:
            detail = f"run {run_id} has no recording that begins with step {step:,}"
            raise HTTPException(status_code=404, detail=detail) from error
        except OSError as error:
            raise HTTPException(status_code=404, detail="this recording cannot be read") from error
        except ValueError as error:
            raise HTTPException(status_code=422, detail=str(error)) from error

    @router.get("")
    def list_all(run_id: str) -> dict[str, Any]:
        stored = recordings.list_recordings(store.view(run_id).run)
        return {
            "recordings": [
                {"step": item.step, "size_bytes": item.size_bytes, "recorded_unix_s": item.recorded_unix_s}
                for item in stored
            ]
        }

    @router.get("/{step}")
    @SLOW.handler
    def recording(run_id: str, step: int) -> Response:
        return Response(read(run_id, step), media_type="application/json")

    @router.get("/{step}/trace.json")
    @SLOW.handler
    def trace(run_id: str, step: int) -> Response:
        content = read(run_id, step, as_trace=True)
        headers = {
            "Content-Disposition": f'attachment; filename="{file_stem(run_id)}-step-{step}.trace.json"',
            "Cache-Control": "no-store",
        }
        return Response(content, media_type="application/json", headers=headers)

    return router


if __name__ == "__main__":
    run_path, first_step, is_trace = orjson.loads(sys.stdin.buffer.read())
    try:
        encoded = _encode(RunDirectory(Path(run_path)), first_step, as_trace=is_trace)
        sys.stdout.buffer.write(SUCCEEDED + b"\n" + encoded)
    except ValueError as error:
        sys.stdout.buffer.write(REFUSED + b"\n" + str(error).encode())
