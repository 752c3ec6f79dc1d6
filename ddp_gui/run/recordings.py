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
READ_HERE_BYTES = 1024 * 1024

COMPUTING, ALL_REDUCES, ROUNDS, COLLECTIVES = range(4)
_THREADS = ("computing", "all-reduce of buckets", "rounds through shared memory", "other collectives")
_WORDS = {"both": "forward and backward"}

GIVEN, REFUSED = b"given", b"refused"

Recording = Mapping[str, Any]
TraceEvent = dict[str, Any]


def encoded_trace(run: RunDirectory, step: int, *, as_trace: bool) -> bytes:
    """Return a recording as JSON, or as a Chrome trace if `as_trace`.

    Raises:
        OSError: if it does not exist or cannot be read.
        ValueError: if it is damaged.
    """
    if recordings.path_of(run, step).stat().st_size <= READ_HERE_BYTES:
        return _encoded(run, step, as_trace=as_trace)
    asked = [str(run.path), step, as_trace]
    mark, _, answer = b"".join(module_output("ddp_gui.run.recordings", asked)).partition(b"\n")
    if mark == REFUSED:
        raise ValueError(answer.decode())
    return answer


def _encoded(run: RunDirectory, step: int, *, as_trace: bool) -> bytes:
    recording = recordings.read(run, step)
    return orjson.dumps(trace_of(recording, run.run_id) if as_trace else recording)


def trace_of(recording: Recording, name: str) -> dict[str, Any]:
    """Return a recording as a Chrome trace with times in microseconds; `name` is the run's name."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": name, "clock": recording["clock"], "overlap": recording["numbers"]["overlap"]},
        "traceEvents": [event for rank in recording["ranks"] for event in _of_rank(recording, rank)],
    }


def _of_rank(recording: Recording, rank: Mapping[str, Any]) -> Iterator[TraceEvent]:
    pid = rank["rank"]
    yield _meta(pid, 0, "process_name", f"rank {pid}" + (f" on {rank['host']}" if rank["host"] else ""))
    yield _meta(pid, 0, "process_sort_index", pid)
    for tid, words in enumerate(_THREADS):
        yield _meta(pid, tid, "thread_name", words)
    for step in rank["steps"]:
        yield _span(pid, COMPUTING, f"step {step['step']}", step["began_s"], step["ended_s"], {})
        for part, began_s, ended_s in step["parts"]:
            words = _WORDS.get(part, part)
            yield _span(pid, COMPUTING, words, began_s, ended_s, {"step": step["step"]})
        for each in step["all_reduces"]:
            yield from _of_all_reduce(recording, pid, each)
        for each in step["collectives"]:
            size = {} if each["bytes"] is None else {"bytes": each["bytes"]}
            yield _span(pid, COLLECTIVES, each["name"], each["began_s"], each["ended_s"], size)


def _of_all_reduce(recording: Recording, pid: int, each: Mapping[str, Any]) -> Iterator[TraceEvent]:
    number, buckets = each["bucket"], recording["buckets"]
    known: dict[str, Any] = {}
    if number < len(buckets):
        names = [parameter["name"] for parameter in buckets[number]["parameters"]]
        known = {"bytes": buckets[number]["bytes"], "parameters": names}
    yield _span(pid, ALL_REDUCES, f"bucket {number}", each["began_s"], each["ended_s"], known)
    for began_s, written_s, met_s, ended_s, size in each["rounds"]:
        yield _span(pid, ROUNDS, "write", began_s, written_s, {"bytes": size})
        yield _span(pid, ROUNDS, "wait for the others", written_s, met_s, {})
        yield _span(pid, ROUNDS, "add up", met_s, ended_s, {"bytes": size})


def _span(pid: int, tid: int, name: str, began_s: float, ended_s: float, known: dict[str, Any]) -> TraceEvent:
    microseconds = {"ts": round(1e6 * began_s, 1), "dur": round(1e6 * max(0.0, ended_s - began_s), 1)}
    return {
        "ph": "X",
        "cat": _THREADS[tid],
        "name": name,
        "pid": pid,
        "tid": tid,
        **microseconds,
        "args": known,
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
            return encoded_trace(run, step, as_trace=as_trace)
        except FileNotFoundError as error:
            detail = f"run {run_id} has no recording that begins with step {step:,}"
            raise HTTPException(status_code=404, detail=detail) from error
        except OSError as error:
            raise HTTPException(status_code=404, detail="this recording cannot be read") from error
        except ValueError as error:
            raise HTTPException(status_code=422, detail=str(error)) from error

    @router.get("")
    def listed(run_id: str) -> dict[str, Any]:
        found = recordings.list_recordings(store.view(run_id).run)
        return {
            "recordings": [
                {"step": each.step, "size_bytes": each.size_bytes, "recorded_unix_s": each.recorded_unix_s}
                for each in found
            ]
        }

    @router.get("/{step}")
    @SLOW.handler
    def one(run_id: str, step: int) -> Response:
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
    asked_path, asked_step, is_trace_asked = orjson.loads(sys.stdin.buffer.read())
    try:
        words = _encoded(RunDirectory(Path(asked_path)), asked_step, as_trace=is_trace_asked)
        sys.stdout.buffer.write(GIVEN + b"\n" + words)
    except ValueError as error:
        sys.stdout.buffer.write(REFUSED + b"\n" + str(error).encode())
