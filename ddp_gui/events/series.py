"""Series of a run's numbers over steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ddp_gui.events import fold, tables
from ddp_gui.events.fold import Evaluations, Fold
from ddp_gui.events.tables import (
    MAX_POINTS,
    MAX_POINTS_OF_A_RANGE,
    PLAIN_VIEW,
    ChartView,
    GrowingTable,
    Numbers,
    Smoothing,
    Trace,
    samples_at,
    shown,
    shown_x,
    thin,
)
from trainers.contract.events import FIELDS, RANK_FIELDS, Event

MAX_STORED_COMPARISONS = 4_000
MAX_COMPARED_RANKS = 64
NUM_LATEST_SHOWN = 24
MAX_COMPARISONS = 200


class FingerprintSeries:
    """The comparisons of a run by step. For a very long run, only some of the older ones are kept."""

    def __init__(self) -> None:
        self._all: list[Event] = []
        self._started_at_seq = 0
        self.newest_seq = -1

    def add(self, event: Event) -> None:
        """Add a `fingerprints` event, which replaces the comparisons of its step and later steps."""
        comparison = {name: event[name] for name in ("seq", "step")}
        comparison |= {name: event[name][:MAX_COMPARED_RANKS] for name in ("hashes", "distances")}
        while self._all and self._all[-1]["step"] >= comparison["step"]:
            self._all.pop()
        self._all.append(comparison)
        if len(self._all) > MAX_STORED_COMPARISONS:
            half = len(self._all) // 2
            self._all = self._all[:half:2] + self._all[half:]
        self.newest_seq = comparison["seq"]

    def note_start(self, seq: int) -> None:
        """Note that the run starts or resumes with the event of this number."""
        self._started_at_seq = seq

    def cut_from(self, step: int) -> None:
        """Drop the comparisons of earlier starts at `step` and after it."""
        # Steps and event numbers increase, so the dropped comparisons are one slice of the list.
        first = bisect_left(self._all, step, key=lambda item: item["step"])
        end = bisect_right(self._all, self._started_at_seq, key=lambda item: item["seq"])
        del self._all[first : max(first, end)]

    def shown(self) -> dict[str, Any] | None:
        """Return the values that the page shows; None before the first comparison."""
        if not self._all:
            return None
        newest = self._all[-1]
        differing = len(self._all)
        while differing > 0 and not _is_identical(self._all[differing - 1]):
            differing -= 1
        return {
            "step": newest["step"],
            "num_ranks": len(newest["hashes"]),
            "is_identical": _is_identical(newest),
            "differ_since": None if _is_identical(newest) else self._all[differing]["step"],
            "identical_until": self._all[differing - 1]["step"] if differing else None,
            "newest": [
                {name: item[name] for name in ("step", "hashes", "distances")}
                for item in self._all[-NUM_LATEST_SHOWN:]
            ],
            "curve": self._curve(),
        }

    def _curve(self) -> dict[str, Any] | None:
        """Return each rank's distance over the steps, thinned; None if replicas were always identical."""
        if all(map(_is_identical, self._all)):
            return None
        positions = np.unique(
            np.linspace(0, len(self._all) - 1, MAX_COMPARISONS).round().astype(int)
        ).tolist()
        chosen = [self._all[position] for position in positions]
        num_ranks = min(len(item["distances"]) for item in chosen)
        return {
            "steps": [item["step"] for item in chosen],
            "distances": [[item["distances"][rank] for item in chosen] for rank in range(num_ranks)],
        }


def _is_identical(comparison: Event) -> bool:
    return len(set(comparison["hashes"])) == 1


FEW_EVENTS = 400
MAX_POINTS_OF_FEW_EVENTS = 20
MAX_POINTS_OF_MANY_EVENTS = 400
RATE_WINDOW_S = 10.0
MAX_RANKS_EVENTS = 10
MAX_PLANS = 1_000
# Number of marks at which they are reduced: twice the limits of all kinds together.
MAX_MARKS = 2 * fold.MAX_MARKS_OF_A_KIND * (1 + len(FIELDS))
PLAN_OF_SAMPLES = ("num_train", "dealing")
PLAN_OF_SCRIPT = ("model", "num_train", "num_parameters", "global_batch", "steps_per_epoch", "num_steps")

# The columns of step events: name of the trace, and field of the event.
STEP_FIELDS = {
    "loss": "loss",
    "throughput": "samples_per_s",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "step_time": "step_time_s",
    "data_time": "data_time_s",
    "epoch": "epoch",
}
SMOOTHED = "_smooth"
LOAD_FIELDS = {"others": "others_cpu_percent", "idle": "idle_cpu_percent"}
# The parts of a step (the step itself, data, forward, …), with the fields of the event.
RANK_PARTS = {name.removesuffix("_time_s"): name for name in RANK_FIELDS if name.endswith("_time_s")}
DEVICE_FIELDS = {
    "utilization": "utilization_percent",
    "memory": "memory_used_bytes",
    "temperature": "temperature_celsius",
    "power": "power_watts",
}


class Series:
    """The columns of one run, fed with its events in order.

    Attributes:
        planned_at_step: the last plan's global batch applies from this step on.
        plans: the sample counts in the `plan` event of each start.
        ranks_a_node: number of ranks on each machine.
        num_ranks: entries of higher ranks are dropped.
    """

    def __init__(self, num_ranks: int = fold.MAX_RANKS) -> None:
        self.num_ranks = min(num_ranks, fold.MAX_RANKS)
        self.steps = GrowingTable(tuple(STEP_FIELDS))
        self.devices: dict[int, GrowingTable] = {}
        self.ranks: dict[int, GrowingTable] = {}
        self.load = GrowingTable(tuple(LOAD_FIELDS))
        self.evaluation_table = GrowingTable(("validation_loss",))
        self.next_seq = 0
        self.rewound_at_seq = -1
        self.last_step: Event = {}
        self.evaluations = Evaluations()
        self.fingerprints = FingerprintSeries()
        self.plan: Event = {}
        self.plans: deque[Event] = deque(maxlen=MAX_PLANS)
        self.script: Event = {}
        self.state: Event = {}
        self.problem: Event = {}
        self.marks: list[Event] = []
        self.latest: dict[str, Event] = {}
        self.newest_ranks: deque[Event] = deque(maxlen=MAX_RANKS_EVENTS)
        self._fold = Fold()
        self._recent: deque[tuple[float, int]] = deque()
        self.planned_at_step = 0
        self.ranks_a_node = 1
        self._paused_s = 0.0
        self._paused_at_s: float | None = None

    def feed(self, batch: Iterable[Event]) -> None:
        """Add new events, in the order of the file."""
        steps: list[Event] = []
        for event in batch:
            if event["kind"] == "step":
                steps.append(event)
                continue
            self._take_steps(steps)
            steps = []
            self._take(event)
        self._take_steps(steps)

    @property
    def newest_unix_s(self) -> float | None:
        """The time of the last event."""
        return self._fold.newest_unix_s

    def active_s(self, now: float | None = None) -> float:
        """Return the active time of the run in seconds, without the time between stop and resume."""
        return self._fold.active_s(now)

    def paused_s(self, now: float | None = None) -> float:
        """Return the part of `active_s` in which the run was paused."""
        since = self._paused_at_s
        return self._paused_s + (0.0 if since is None else max(0.0, self.active_s(now) - since))

    def steps_per_s(self) -> float | None:
        """Return the pace of the last ten seconds, including evaluations and checkpoints."""
        if len(self._recent) < 2:
            return None
        (t0, s0), (t1, s1) = self._recent[0], self._recent[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else None

    def snapshot(self, chart_view: ChartView = PLAIN_VIEW) -> dict[str, Trace]:
        """Return every trace, thinned to `MAX_POINTS`."""
        traces = self._step_traces(0, self.steps.length, chart_view)
        return traces | self._other_traces(0, chart_view, MAX_POINTS)

    def delta(self, since_seq: int, chart_view: ChartView = PLAIN_VIEW) -> dict[str, Trace]:
        """Return the points of events from `since_seq` on; omits traces without points."""
        is_small = self.next_seq - since_seq <= FEW_EVENTS
        max_points = MAX_POINTS_OF_FEW_EVENTS if is_small else MAX_POINTS_OF_MANY_EVENTS
        first = self.steps.since(since_seq)
        traces = self._new_steps(first, max_points, chart_view) if first < self.steps.length else {}
        return traces | self._other_traces(since_seq, chart_view, max_points)

    def _other_traces(self, since_seq: int, chart_view: ChartView, max_points: int) -> dict[str, Trace]:
        """Return the traces of evaluations and devices, of events from `since_seq` on."""
        evaluations = self.evaluation_table
        traces = _slice_traces(
            evaluations, evaluations.since(since_seq), evaluations.length, evaluations.fields, chart_view
        )
        for rank, table in self.devices.items():
            if chart_view.shows(rank, self.ranks_a_node):
                view, first = ChartView(axis="time"), table.since(since_seq)
                traces |= _slice_traces(
                    table, first, table.length, DEVICE_FIELDS, view, max_points, suffix=f":{rank}"
                )
        return traces

    def range(self, low: float, high: float, chart_view: ChartView = PLAIN_VIEW) -> dict[str, Trace]:
        """Return the traces between two positions of the axis, thinned if there are many points."""
        first, last = self.steps.between(low, high, chart_view.axis)
        traces = self._step_traces(first, last, chart_view, MAX_POINTS_OF_A_RANGE)
        evaluations = self.evaluation_table
        first, last = evaluations.between(low, high, chart_view.axis)
        return traces | _slice_traces(evaluations, first, last, evaluations.fields, chart_view)

    def samples_at(self, steps: npt.ArrayLike) -> Numbers:
        """Return the samples that all ranks together had processed after some steps; NaN if unknown."""
        return samples_at(steps, _count(self.plan.get("global_batch")), _count(self.plan.get("num_train")))

    def smoothed(self, name: str, span: float, over: Smoothing, first: int, last: int) -> Numbers:
        """Return the moving average of a column of steps over steps, samples or seconds."""
        if over == "step" or last <= first:
            # A step is a row, so a span of one step needs no average.
            return self.steps.smoothed(name, max(span, 1.0 + 1e-9), first, last)
        if over == "time":
            return self.steps.smoothed(name, span, first, last, np.maximum.accumulate(self.steps.x("time")))
        samples = self.samples_at(self.steps.x("step"))
        if not np.isfinite(samples[-1]):
            return np.full(last - first, np.nan)  # the positions in samples are unknown
        return self.steps.smoothed(name, span, first, last, samples, is_weighted=True)

    def _step_traces(
        self, first: int, last: int, chart_view: ChartView, max_points: int = MAX_POINTS
    ) -> dict[str, Trace]:
        names = ("loss", *tables.chart_columns())
        traces = _slice_traces(self.steps, first, last, names, chart_view, max_points)
        if chart_view.smoothing > 0 and last > first:
            x = self.steps.x(chart_view.axis)[first:last]
            for name in chart_view.smoothed:
                smooth = self.smoothed(name, chart_view.smoothing, chart_view.smooth_over, first, last)
                traces[name + SMOOTHED] = _trace(x, smooth, max_points)
        return traces

    def _new_steps(self, first: int, max_points: int, chart_view: ChartView) -> dict[str, Trace]:
        """Return new points at the x positions of the loss, with one x for all traces to save bytes."""
        table, last = self.steps, self.steps.length
        x, loss = table.x(chart_view.axis)[first:last], table.column("loss")[first:last]
        chosen = thin(x, loss, max_points)
        traces: dict[str, Trace] = {"loss": {"x": shown_x(x[chosen]), "y": shown(loss[chosen])}}
        if chart_view.smoothing > 0:
            for name in chart_view.smoothed:
                smooth = self.smoothed(name, chart_view.smoothing, chart_view.smooth_over, first, last)
                traces[name + SMOOTHED] = {"as": "loss", "y": shown(smooth[chosen])}
        for name in tables.chart_columns(sparse=False):
            traces[name] = {"as": "loss", "y": shown(table.column(name)[first:last][chosen])}
        return traces | _slice_traces(
            table, first, last, tables.chart_columns(sparse=True), chart_view, max_points
        )

    def _take(self, event: Event) -> None:
        event = fold.limit_fields(event, self.num_ranks)
        self.next_seq = event["seq"] + 1
        is_start = fold.is_start(event)
        if is_start:
            self._recent.clear()
            self.fingerprints.note_start(event["seq"])
        self._fold.take_time(event["time_unix_s"], is_start=is_start)
        kind = event["kind"]
        if kind == "eval":
            self._take_evaluation(event)
        elif kind == "devices":
            self._take_devices(event)
        elif kind == "fingerprints":
            self.fingerprints.add(event)
        elif kind == "plan":
            if self.plan and self.plan.get("global_batch") != event.get("global_batch"):
                self.planned_at_step = self.last_step.get("step", 0) + 1
            self.plan = event
            self.plans.append({name: event[name] for name in PLAN_OF_SAMPLES if name in event})
        elif kind == "script":
            # Scripts write this event instead of a plan, and again when more is known.
            self.script = event
            self.plan = {name: event.get(name) for name in PLAN_OF_SCRIPT}
        elif kind in ("ranks", "sample"):
            self.latest[kind] = event
            if kind == "ranks":
                self._take_ranks(event)
        else:
            self._take_mark(event)

    def _take_steps(self, batch: Sequence[Event]) -> None:
        if not batch:
            return
        steps = [event["step"] for event in batch]
        remaining = self._fold.take_batch(steps)
        if remaining.cut_from is not None and remaining.last_cut is not None:
            self._rewind(remaining.cut_from, batch[remaining.last_cut]["seq"])
        active_s = self._fold.take_times([event["time_unix_s"] for event in batch])
        chosen = [batch[row] for row in remaining.rows.tolist()]
        # A missing number (null) becomes NaN.
        values = np.array([[event[field] for event in chosen] for field in STEP_FIELDS.values()], float)
        self.steps.extend(
            [event["seq"] for event in chosen],
            [event["step"] for event in chosen],
            active_s[remaining.rows],
            values,
        )
        self.last_step, self.next_seq = batch[-1], batch[-1]["seq"] + 1
        first_row = remaining.last_cut or 0
        self._keep_recent(active_s[first_row:].tolist(), steps[first_row:])

    def _keep_recent(self, active_s: Sequence[float], steps: Sequence[int]) -> None:
        for at_s, step in zip(active_s, steps, strict=True):
            if not self._recent or at_s > self._recent[-1][0]:
                self._recent.append((at_s, step))
        # Keep one entry before the window, so that even a run with one step per minute has a pace.
        since = active_s[-1] - RATE_WINDOW_S
        while len(self._recent) > 2 and self._recent[0][0] < since:
            self._recent.popleft()

    def _take_evaluation(self, event: Event) -> None:
        self.evaluations.add(event)
        values = {"validation_loss": event["loss"]}
        values |= {f"metric:{name}": value for name, value in event["metrics"].items()}
        num_free = 1 + fold.MAX_METRICS - len(self.evaluation_table.fields)
        new = [name for name in values if name not in self.evaluation_table.fields][:num_free]
        if new:
            self.evaluation_table = _with_fields(self.evaluation_table, new)
        self.evaluation_table.cut_from(event["step"])
        self.evaluation_table.append(event["seq"], event["step"], self.active_s(), values)

    def _take_devices(self, event: Event) -> None:
        self.latest["devices"] = event
        seconds, step = self.active_s(), self.last_step.get("step", 0)
        self.load.append(
            event["seq"], step, seconds, {name: event.get(field) for name, field in LOAD_FIELDS.items()}
        )
        for device in event["devices"]:
            table = self.devices.setdefault(device["rank"], GrowingTable(tuple(DEVICE_FIELDS)))
            values = {name: device.get(field) for name, field in DEVICE_FIELDS.items()}
            table.append(event["seq"], step, seconds, values)

    def _take_ranks(self, event: Event) -> None:
        self.newest_ranks.append(event)
        for entry in event["ranks"]:
            if entry.get("step_time_s") is None:
                continue
            table = self.ranks.setdefault(entry["rank"], GrowingTable(tuple(RANK_PARTS)))
            if table.length and table.x("step")[-1] == entry["step"]:
                continue  # during a pause or an evaluation, a rank reports the same step every second
            values = {name: entry.get(field) for name, field in RANK_PARTS.items()}
            table.append(event["seq"], entry["step"], self.active_s(), values)

    def _take_mark(self, event: Event) -> None:
        kind = event["kind"]
        step = event.get("step", self.last_step.get("step", 0))
        self.marks.append({"step": step, "active_s": round(self.active_s(), 2), **event})
        if len(self.marks) > MAX_MARKS:
            self.marks = fold.drop_oldest_marks(self.marks)
        if kind == "state":
            self.state = event
            self._paused_s = self.paused_s()
            self._paused_at_s = self.active_s() if event["state"] == "paused" else None
            if event["state"] == "starting":
                self.problem = {}
            elif event["state"] == "paused":
                self._recent.clear()
        elif kind == "error":
            self.problem = event

    def _rewind(self, step: int, seq: int) -> None:
        """Drop all data from `step` on, because a resume from an older checkpoint continues at this step."""
        self.steps.cut_from(step)
        self.evaluation_table.cut_from(step)
        self.evaluations.cut_from(step)
        self.fingerprints.cut_from(step)
        self.rewound_at_seq = seq
        self.planned_at_step = min(self.planned_at_step, step)
        self._recent.clear()


def _count(value: object) -> int | None:
    """Return a number of samples; None for anything else in a damaged file."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_fields(table: GrowingTable, names: Iterable[str]) -> GrowingTable:
    """Return a table with additional, empty columns."""
    extended = GrowingTable((*table.fields, *(name for name in names if name not in table.fields)))
    values = np.full((len(extended.fields), table.length), np.nan)
    for name, row in table.fields.items():
        values[row] = table.column(name)
    extended.extend(*table.keys(), values)
    return extended


def _slice_traces(
    table: GrowingTable,
    first: int,
    last: int,
    columns: Iterable[str],
    chart_view: ChartView,
    max_points: int = MAX_POINTS,
    suffix: str = "",
) -> dict[str, Trace]:
    """Return the traces of columns of a slice, by name with a suffix; omits empty traces.

    Gaps of a sparse column (the gradient norm comes once per report) are not drawn; in other columns a gap is
    NaN and visible.
    """
    if last <= first:
        return {}
    x = table.x(chart_view.axis)[first:last]
    sparse = tables.chart_columns(sparse=True)
    traces = {}
    for column in columns:
        y = table.column(column)[first:last]
        is_finite = np.isfinite(y)
        num_finite = int(is_finite.sum())
        if num_finite == 0:
            continue
        if column in sparse or num_finite < len(y) // 2:
            traces[column + suffix] = _trace(x[is_finite], y[is_finite], max_points)
        else:
            traces[column + suffix] = _trace(x, y, max_points)
    return traces


def _trace(x: npt.NDArray[Any], y: npt.NDArray[Any], max_points: int) -> Trace:
    chosen = thin(x, y, max_points)
    return {"x": shown_x(x[chosen]), "y": shown(y[chosen])}
