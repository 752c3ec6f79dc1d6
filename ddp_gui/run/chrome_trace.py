"""A recording in Chrome's trace format ("Trace Event Format"), as Perfetto and chrome://tracing open it.

A process is a rank; its threads are its computing, its all-reduces and its other collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COMPUTING, ALL_REDUCES, ROUNDS, COLLECTIVES = range(4)
_THREADS = ("computing", "all-reduce of buckets", "rounds through shared memory", "other collectives")
_WORDS = {"both": "forward and backward"}

Recording = Mapping[str, Any]
TraceEvent = dict[str, Any]


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
