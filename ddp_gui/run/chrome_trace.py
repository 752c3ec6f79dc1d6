"""A recording as JSON: as it is, or in Chrome's "Trace Event Format" for Perfetto and chrome://tracing.

In a trace a process is a rank; its threads are its computing, its all-reduces and its other collectives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from ddp_gui.background.low_priority import printed_by
from trainers.contract import recordings
from trainers.contract.rundir import RunDirectory

# A longer recording is read by a low-priority process: parsing holds the interpreter's lock.
READ_HERE_BYTES = 1024 * 1024

COMPUTING, ALL_REDUCES, ROUNDS, COLLECTIVES = range(4)
_THREADS = ("computing", "all-reduce of buckets", "rounds through shared memory", "other collectives")
_WORDS = {"both": "forward and backward"}

GIVEN, REFUSED = b"given", b"refused"

Recording = Mapping[str, Any]
TraceEvent = dict[str, Any]


def encoded(run: RunDirectory, step: int, *, as_trace: bool) -> bytes:
    """Return a recording as JSON.

    Raises:
        OSError: when there is none.
        ValueError: when it is damaged.
    """
    if recordings.path_of(run, step).stat().st_size <= READ_HERE_BYTES:
        return _encoded(run, step, as_trace=as_trace)
    asked = [str(run.path), step, as_trace]
    mark, _, answer = b"".join(printed_by("ddp_gui.run.chrome_trace", asked)).partition(b"\n")
    if mark == REFUSED:
        raise ValueError(answer.decode())
    return answer


def _encoded(run: RunDirectory, step: int, *, as_trace: bool) -> bytes:
    recording = recordings.read(run, step)
    return orjson.dumps(of(recording, run.run_id) if as_trace else recording)


def of(recording: Recording, name: str) -> dict[str, Any]:
    """Return the trace; `name` is the run's. Times are in microseconds, as the format wants them."""
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


if __name__ == "__main__":
    asked_path, asked_step, is_trace_asked = orjson.loads(sys.stdin.buffer.read())
    try:
        words = _encoded(RunDirectory(Path(asked_path)), asked_step, as_trace=is_trace_asked)
        sys.stdout.buffer.write(GIVEN + b"\n" + words)
    except ValueError as error:
        sys.stdout.buffer.write(REFUSED + b"\n" + str(error).encode())
