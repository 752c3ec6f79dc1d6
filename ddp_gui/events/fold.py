"""Folds a run's events into one state of limited size, which each event updates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainers.contract import events
from trainers.contract.events import Event, primary_metric

MAX_RANKS = 4_096
MAX_METRICS = 32
MAX_CLASSES = 50
# The next two limits equal those of the trainers (tasks/tabular_classification.py and report/samples.py).
MAX_CLASS_NAME = 40
MAX_CELL = 40
MAX_NAME = 100
MAX_TEXT = 4_000
MAX_TRACEBACK = 20_000
MAX_ITEMS = 100
# Limits of a sample's content, which the page draws once and then replaces by the next sample.
MAX_SAMPLE_ITEMS = 10_000
MAX_SAMPLE_TEXT = 400_000
MAX_HASH = 64
# Maximum number of events per kind in the list "What happened".
MAX_MARKS_OF_A_KIND = 500


def limit_fields(event: Event, num_ranks: int) -> Event:
    """Return an event with only the fields of its kind, each limited in size.

    Args:
        num_ranks: entries of higher ranks are dropped.
    """
    kind = event["kind"]
    # Of an unknown kind, the page shows only the name.
    names = (*events.COMMON_FIELDS, *events.FIELDS.get(kind, ("step",)))
    limited = {name: event[name] for name in names if name in event}
    if kind == "devices":
        limited["devices"] = _by_rank(event["devices"], (*events.DEVICE_FIELDS, "host"), num_ranks)
    elif kind == "ranks":
        limited["ranks"] = _by_rank(event["ranks"], events.RANK_FIELDS, num_ranks)
    elif kind == "eval":
        limited["metrics"] = _metrics(event["metrics"])
        limited["confusion"] = _drawable_matrix(event.get("confusion"))
    elif kind == "sample":
        limited["content"] = _sample(event.get("content"), event.get("type"))
    elif kind == "fingerprints":
        limited["hashes"] = [value[:MAX_HASH] for value in event["hashes"][:num_ranks]]
        limited["distances"] = event["distances"][:num_ranks]
    else:
        traceback = cut_text(event.get("traceback"), MAX_TRACEBACK)
        limited = cut_text(limited, MAX_TEXT) | ({"traceback": traceback} if "traceback" in limited else {})
        if kind == "plan":
            limited["class_names"] = cut_text(event.get("class_names"), MAX_CLASS_NAME)
    return limited


def _metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first metrics, including the main metric. Shortened names stay distinct."""
    main = events.primary_metric(metrics)
    ordered = metrics if main is None else {main: metrics[main], **metrics}
    return {_cut_name(name): value for name, value in islice(ordered.items(), MAX_METRICS)}


def _cut_name(name: str) -> str:
    """Return a name of at most MAX_NAME characters; a shortened name ends with a part of its hash."""
    if len(name) <= MAX_NAME:
        return name
    mark = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: MAX_NAME - len(mark) - 1]}…{mark}"


def drop_oldest_marks(marks: Sequence[Event]) -> list[Event]:
    """Return the last marks of each kind; all unknown kinds count as one."""
    num_left = dict.fromkeys((*events.FIELDS, ""), MAX_MARKS_OF_A_KIND)
    last_marks = []
    for mark in reversed(marks):
        kind = mark["kind"] if mark["kind"] in events.FIELDS else ""
        num_left[kind] -= 1
        if num_left[kind] >= 0:
            last_marks.append(mark)
    return last_marks[::-1]


def cut_text(value: Any, max_length: int, max_items: int = MAX_ITEMS) -> Any:
    """Return a value with its texts, lists and objects cut to these lengths."""
    if isinstance(value, str):
        return value if len(value) <= max_length else value[: max_length - 1] + "…"
    if isinstance(value, list):
        return [cut_text(item, max_length, max_items) for item in value[:max_items]]
    if isinstance(value, dict):
        return {
            _cut_name(name): cut_text(item, max_length, max_items)
            for name, item in islice(value.items(), max_items)
        }
    return value


def _by_rank(
    entries: Iterable[Mapping[str, Any]], fields: Sequence[str], num_ranks: int
) -> list[dict[str, Any]]:
    """Return one entry for each existing rank, with these fields."""
    newest = {entry["rank"]: entry for entry in entries if entry["rank"] < num_ranks}
    return [
        {name: cut_text(entry[name], MAX_NAME) for name in fields if name in entry}
        for entry in newest.values()
    ]


def _sample(content: Any, kind: Any) -> Any:
    """Return the content of a sample with short names of columns and classes, and short table cells."""
    if kind == "rows":
        return cut_text(content, MAX_CELL)
    content = cut_text(content, MAX_SAMPLE_TEXT, MAX_SAMPLE_ITEMS)
    for entry in content if isinstance(content, list) else ():
        if isinstance(entry, dict):
            entry |= {
                name: cut_text(entry[name], MAX_NAME) for name in ("label", "prediction") if name in entry
            }
    return content


def _drawable_matrix(confusion: list[list[float]] | None) -> list[list[float]] | None:
    """Return a confusion matrix if it can be drawn, else None."""
    num_classes = len(confusion or ())
    is_square = confusion is not None and all(len(row) == num_classes for row in confusion)
    return confusion if is_square and num_classes <= MAX_CLASSES else None


MAX_EVALUATIONS = 10_000
MAX_OLDER_METRICS = 8


class Evaluations:
    """The evaluations of a run in order, and the best of them by its main metric.

    For a very long run, only some of the older evaluations are kept.
    """

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._fold = Fold()

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation, by the run's main metric."""
        return self._fold.best

    @property
    def last(self) -> dict[str, Any]:
        """The last evaluation, or an empty dict."""
        return self.all[-1] if self.all else {}

    def add(self, event: dict[str, Any]) -> None:
        """Add an `eval` event, which replaces the evaluations of its step and later steps."""
        self.cut_from(event["step"])
        if self.all:
            self.all[-1] = _reduce_older(self.all[-1])
        self.all.append(event)
        if len(self.all) > MAX_EVALUATIONS:
            half = len(self.all) // 2
            self.all = self.all[:half:2] + self.all[half:]
        self._fold.take_evaluation(event["step"], event["metrics"])

    def cut_from(self, step: int) -> None:
        """Drop the evaluations at `step` and after it."""
        while self.all and self.all[-1]["step"] >= step:
            self.all.pop()
        self._fold.cut_from(step)


def _reduce_older(event: dict[str, Any]) -> dict[str, Any]:
    """Return the reduced form of an older evaluation, without the confusion matrix and with few metrics."""
    metrics = event["metrics"]
    main = primary_metric(metrics)
    if len(metrics) > MAX_OLDER_METRICS:
        metrics = {} if main is None else {main: metrics[main]}
    return {**event, "confusion": None, "metrics": metrics}


def node_rows(latest: Mapping[str, Event], num_nodes: int, num_ranks: int) -> list[dict[str, Any]]:
    """Return an entry for each machine in the latest events, in the order of the machines.

    `idlest` is the least busy rank, `slowest` the rank with the longest step time without waiting.
    """
    devices: Sequence[Mapping[str, Any]] = latest.get("devices", {}).get("devices", [])
    ranks: Sequence[Mapping[str, Any]] = latest.get("ranks", {}).get("ranks", [])
    on_node: dict[int, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for number, entries in enumerate((devices, ranks)):
        for entry in entries:
            if entry["rank"] < num_ranks:
                node = ((entry["rank"] + 1) * num_nodes - 1) // num_ranks
                on_node.setdefault(node, ([], []))[number].append(entry)
    return [
        {"node": node, **_devices(node_devices), **_steps(node_ranks)}
        for node, (node_devices, node_ranks) in sorted(on_node.items())
        if node_devices
    ]


def _devices(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    busy = {
        device["rank"]: device["utilization_percent"]
        for device in devices
        if device.get("utilization_percent") is not None
    }
    idlest = min(busy, key=lambda rank: busy[rank], default=None)
    return {
        "host": next((device["host"] for device in devices if device.get("host")), None),
        "num_ranks": len(devices),
        "memory_bytes": sum(device.get("memory_used_bytes") or 0 for device in devices),
        "busy_percent": round(sum(busy.values()) / len(busy)) if busy else None,
        "idlest": idlest,
        "idlest_percent": None if idlest is None else round(busy[idlest]),
    }


def _steps(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    busy_s = {
        rank["rank"]: rank["step_time_s"] - (rank.get("wait_time_s") or 0.0)
        for rank in ranks
        if rank.get("step_time_s") is not None
    }
    slowest = max(busy_s, key=lambda rank: busy_s[rank], default=None)
    return {
        "slowest": slowest,
        "slowest_s": None if slowest is None else float(f"{busy_s[slowest]:.4g}"),
        "grown_bytes": max((size for size in map(_grown_bytes, ranks) if size is not None), default=None),
    }


def _grown_bytes(rank: Mapping[str, Any]) -> int | None:
    """Return the growth of a rank's memory since before its model was built, in bytes."""
    base, peak = rank.get("base_memory_bytes"), rank.get("peak_memory_bytes")
    return None if base is None or peak is None else int(peak - base)


Steps = npt.NDArray[np.int64]
# Maximum time by which events of several threads may be out of order. A larger decrease means that the clock
# was set back.
CLOCK_NOISE_S = 1.0

# Maximum number of records. Older records would be needed only after a cut to before all of these.
MAX_RECORDS = 1_000


class RemainingSteps(NamedTuple):
    """The remaining steps of a batch: a step replaces all equal and higher steps before it.

    Attributes:
        rows: indices of the steps in the batch that no later step of the batch replaces.
        cut_from: drop earlier entries from this step on; None: drop none.
        last_cut: index of the last decrease of the steps; None if `cut_from` is None.
    """

    rows: Steps
    cut_from: int | None
    last_cut: int | None


@dataclass
class Fold:
    """Progress and active time of a run, and its best evaluation.

    Attributes:
        step: the last step, or the last step before a cut.
        idle_s: total time between each stop and the next resume; negative if the clock was set back.
        records: step and value of each evaluation that was the best so far, by `metric`. After a cut, the
            last remaining record is the best of the rest.
    """

    began_unix_s: float | None = None
    newest_unix_s: float | None = None
    idle_s: float = 0.0
    step: int = 0
    metric: str | None = None
    records: list[tuple[int, float]] = field(default_factory=list)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation, by the run's main metric."""
        if not self.records:
            return None
        step, value = self.records[-1]
        return {"name": self.metric, "value": value, "step": step}

    @property
    def origin_unix_s(self) -> float:
        """The origin of the run's active time, for its latest start."""
        return (self.began_unix_s or 0.0) + self.idle_s

    def active_s(self, now: float | None = None) -> float:
        """Return the active time of the run in seconds, until its last event or the later time `now`."""
        if self.newest_unix_s is None:
            return 0.0
        until = self.newest_unix_s if now is None else max(now, self.newest_unix_s)
        return until - self.origin_unix_s

    def take_time(self, time_unix_s: float, *, is_start: bool = False) -> None:
        """Add the time of an event. Calls may be skipped, except for a start and the event before it."""
        if self.began_unix_s is None or self.newest_unix_s is None:
            self.began_unix_s = time_unix_s
        elif is_start or time_unix_s < self.newest_unix_s - CLOCK_NOISE_S:
            self.idle_s += time_unix_s - self.newest_unix_s
        self.newest_unix_s = time_unix_s

    def take_times(self, times_unix_s: Sequence[float]) -> npt.NDArray[np.float64]:
        """Add the times of successive events of one start; return the active seconds at each.

        If the clock was set back, the origin also moves back, so that active time never decreases. A clock
        that was set forward cannot be distinguished from a pause.
        """
        times = np.asarray(times_unix_s, np.float64)
        if self.began_unix_s is None or self.newest_unix_s is None:
            self.began_unix_s = self.newest_unix_s = float(times[0])
        changes = np.diff(times, prepend=self.newest_unix_s)
        set_back = np.cumsum(np.where(changes < -CLOCK_NOISE_S, changes, 0.0))
        active_s: npt.NDArray[np.float64] = times - (self.origin_unix_s + set_back)
        self.idle_s += float(set_back[-1])
        self.newest_unix_s = float(times[-1])
        return active_s

    def take_batch(self, steps: Steps | Sequence[int]) -> RemainingSteps:
        """Add the steps of a batch of events, which may decrease any number of times."""
        steps = np.asarray(steps, np.int64)
        if not len(steps):
            return RemainingSteps(steps, None, None)
        cuts = np.flatnonzero(np.diff(steps, prepend=self.step) <= 0)
        if not len(cuts):
            self.step = int(steps[-1])
            return RemainingSteps(np.arange(len(steps)), None, None)
        cut_from = int(steps[cuts].min())
        self.cut_from(cut_from)
        self.step = int(steps[-1])
        lowest_after = np.minimum.accumulate(steps[::-1])[::-1]
        # A step remains if no later step of the batch is equal or lower, because that would replace it.
        is_kept = np.append(steps[:-1] < lowest_after[1:], True)
        return RemainingSteps(np.flatnonzero(is_kept), cut_from, int(cuts[-1]))

    def take_evaluation(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add an evaluation, which replaces the evaluations of its step and later steps."""
        name = events.primary_metric(metrics)
        if name is None:
            return
        if name != self.metric:
            self.metric, self.records = name, []
        self._forget_records(step)
        value = metrics[name]
        if value is not None and events.is_better(name, value, self.records[-1][1] if self.records else None):
            self.records.append((step, value))
            del self.records[:-MAX_RECORDS]

    def cut_from(self, step: int) -> None:
        """Drop this step and everything after it."""
        self.step = step - 1
        self._forget_records(step)

    def _forget_records(self, step: int) -> None:
        while self.records and self.records[-1][0] >= step:
            self.records.pop()


def is_start(event: events.Event) -> bool:
    """Return True if this event marks a start or a resume of the run."""
    return bool(event["kind"] == "state" and event["state"] == "starting")
