"""A run's events as columns, and the resampled view of a range of them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler, NaNMinMaxLTTBDownsampler

from trainers.contract import events

MAX_POINTS = 2_000
FEW_EVENTS = 400
MAX_POINTS_OF_FEW_EVENTS = 40
MAX_POINTS_OF_MANY_EVENTS = 400
RATE_WINDOW_S = 10.0
TIME_TRACES = ("utilization:", "memory:")

Trace = dict[str, list[float | None]]


class Column:
    """One trace: x, y and the event number of each point, in the order they came."""

    def __init__(self) -> None:
        self.x = array("d")
        self.y = array("d")
        self.seq = array("q")

    def append(self, x: float, y: float | None, seq: int) -> None:
        self.x.append(x)
        self.y.append(math.nan if y is None else y)
        self.seq.append(seq)

    def cut_from(self, x: float) -> None:
        """Forget the points at `x` and after it."""
        keep = bisect_left(self.x, x)
        del self.x[keep:], self.y[keep:], self.seq[keep:]

    def since(self, seq: int) -> int:
        """Return the position of the first point of event `seq` or later."""
        return bisect_left(self.seq, seq)

    def between(self, low: float, high: float) -> tuple[int, int]:
        """Return the positions of the points of a range, one more on each side to draw to its edges."""
        first, last = bisect_left(self.x, low), bisect_right(self.x, high)
        return max(0, first - 1), min(len(self.x), last + 1)

    def view(self, first: int, last: int, max_points: int) -> Trace:
        """Return the points of a slice, thinned such that every peak and dip stays visible."""
        # Copies: an array that is being looked at cannot grow.
        x, y = np.array(self.x[first:last]), np.array(self.y[first:last])
        if len(x) > max_points:
            chosen = _downsample(x, y, max_points)
            x, y = x[chosen], y[chosen]
        return {
            "x": [_short(value, 9) for value in x.tolist()],
            "y": [_short(value, 5) for value in y.tolist()],
        }


class Series:
    """The columns of one run, fed with its events in order."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.next_seq = 0
        self.rewound_at_seq = -1
        self.last_step: dict[str, Any] = {}
        self.evaluations = Evaluations()
        self.plan: dict[str, Any] = {}
        self.state: dict[str, Any] = {}
        self.problem: dict[str, Any] = {}
        self.marks: list[dict[str, Any]] = []
        self.latest: dict[str, dict[str, Any]] = {}
        self.newest_unix_s: float | None = None
        self._first_unix_s: float | None = None
        self._idle_s = 0.0
        self._step_times: list[tuple[float, int]] = []

    def feed(self, batch: Iterable[dict[str, Any]]) -> None:
        """Take in new events, in the order of the file."""
        for event in batch:
            self.next_seq = event["seq"] + 1
            self._keep_time(event)
            kind = event["kind"]
            if kind == "step":
                self._take_step(event)
            elif kind == "eval":
                self._take_eval(event)
            elif kind == "devices":
                self._take_devices(event)
            elif kind == "plan":
                self.plan = event
            elif kind in ("ranks", "sample"):
                self.latest[kind] = event
            else:
                self._take_mark(event)

    def active_s(self, now: float | None = None) -> float:
        """Return the seconds the run has been going on, without the time between stop and resume."""
        if self._first_unix_s is None or self.newest_unix_s is None:
            return 0.0
        return (self.newest_unix_s if now is None else now) - self._first_unix_s - self._idle_s

    def steps_per_s(self) -> float | None:
        """Return the pace of the last ten seconds, evaluations and checkpoints included."""
        if len(self._step_times) < 2:
            return None
        (t0, s0), (t1, s1) = self._step_times[0], self._step_times[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else None

    def snapshot(self) -> dict[str, Trace]:
        """Return every trace, thinned to `MAX_POINTS`."""
        return {name: column.view(0, len(column.x), MAX_POINTS) for name, column in self.columns.items()}

    def delta(self, since_seq: int) -> dict[str, Trace]:
        """Return the points of events from `since_seq` on, of the traces that have some."""
        is_small = self.next_seq - since_seq <= FEW_EVENTS
        most = MAX_POINTS_OF_FEW_EVENTS if is_small else MAX_POINTS_OF_MANY_EVENTS
        changed = {}
        for name, column in self.columns.items():
            first = column.since(since_seq)
            if first < len(column.x):
                changed[name] = column.view(first, len(column.x), most)
        return changed

    def range(self, low: float, high: float) -> dict[str, Trace]:
        """Return the step traces between two steps, thinned to `MAX_POINTS`."""
        return {
            name: column.view(*column.between(low, high), MAX_POINTS)
            for name, column in self.columns.items()
            if not name.startswith(TIME_TRACES)
        }

    def _keep_time(self, event: dict[str, Any]) -> None:
        now = event["time_unix_s"]
        if self._first_unix_s is None:
            self._first_unix_s = now
        elif event["kind"] == "state" and event["state"] == "starting" and self.newest_unix_s is not None:
            self._idle_s += max(0.0, now - self.newest_unix_s)
            self._step_times.clear()
        self.newest_unix_s = now

    def _column(self, name: str) -> Column:
        return self.columns.setdefault(name, Column())

    def _take_step(self, event: dict[str, Any]) -> None:
        step, seq = event["step"], event["seq"]
        if self.last_step and step <= self.last_step["step"]:
            self._rewind(step, seq)
        self.last_step = event
        for name, field in (("loss", "loss"), ("throughput", "samples_per_s"), ("learning_rate", "lr")):
            self._column(name).append(step, event[field], seq)
        if event["grad_norm"] is not None:
            self._column("grad_norm").append(step, event["grad_norm"], seq)
        if not self._step_times or event["time_unix_s"] > self._step_times[-1][0]:
            self._step_times.append((event["time_unix_s"], step))
            times = self._step_times
            while len(times) > 2 and times[-1][0] - times[0][0] > RATE_WINDOW_S:
                self._step_times.pop(0)

    def _take_eval(self, event: dict[str, Any]) -> None:
        self.evaluations.add(event)
        self._column("validation_loss").append(event["step"], event["loss"], event["seq"])
        for name, value in event["metrics"].items():
            self._column(f"metric:{name}").append(event["step"], value, event["seq"])

    def _take_devices(self, event: dict[str, Any]) -> None:
        self.latest["devices"] = event
        seconds = self.active_s()
        for device in event["devices"]:
            rank = device["rank"]
            self._column(f"utilization:{rank}").append(seconds, device["utilization_percent"], event["seq"])
            self._column(f"memory:{rank}").append(seconds, device["memory_used_bytes"], event["seq"])

    def _take_mark(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        step = event.get("step", self.last_step.get("step", 0))
        self.marks.append({"step": step, **event})
        if kind == "state":
            self.state = event
            if event["state"] == "starting":
                self.problem = {}
            elif event["state"] == "paused":
                self._step_times.clear()
        elif kind == "error":
            self.problem = event

    def _rewind(self, step: int, seq: int) -> None:
        """A resume from an older checkpoint: the curve goes on from there."""
        for name, column in self.columns.items():
            if not name.startswith(TIME_TRACES):
                column.cut_from(step)
        self.evaluations.cut_from(step)
        self.rewound_at_seq = seq
        self._step_times.clear()


class Evaluations:
    """The evaluations of a run and the best of them, by its main metric."""

    def __init__(self) -> None:
        self._all: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None

    @property
    def last(self) -> dict[str, Any]:
        """The newest one, or nothing."""
        return self._all[-1] if self._all else {}

    def add(self, event: dict[str, Any]) -> None:
        """Take in an `eval` event; one of an earlier step begins a new branch of the run."""
        if self._all and event["step"] <= self._all[-1]["step"]:
            self.cut_from(event["step"])
        self._all.append(event)
        self.best = _better(self.best, event)

    def cut_from(self, step: int) -> None:
        """Forget the evaluations at `step` and after it."""
        self._all = [event for event in self._all if event["step"] < step]
        self.best = None
        for event in self._all:
            self.best = _better(self.best, event)


def _better(best: dict[str, Any] | None, event: dict[str, Any]) -> dict[str, Any] | None:
    metrics = event["metrics"]
    name = events.primary_metric(metrics)
    if name is None or not events.is_better(name, metrics[name], best["value"] if best else None):
        return best
    return {"name": name, "value": metrics[name], "step": event["step"]}


def _downsample(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], n_out: int) -> npt.NDArray[np.int64]:
    sampler = NaNMinMaxLTTBDownsampler() if np.isnan(y).any() else MinMaxLTTBDownsampler()
    # The library wants an even number of at least four.
    chosen: npt.NDArray[np.int64] = sampler.downsample(x, y, n_out=n_out).astype(np.int64)
    return chosen


def _short(value: float, digits: int) -> float | None:
    """Round to a few significant digits: what a screen can show, in few bytes."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
