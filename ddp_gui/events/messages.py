"""The messages about one run that the page receives: snapshots, deltas, current values."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from ddp_gui.events import event_reader, node_rows
from ddp_gui.events.analysis import pace as pace_of
from ddp_gui.events.run_view import RunView
from ddp_gui.events.series import Series
from ddp_gui.events.tables import PLAIN_VIEW, ChartView
from trainers.contract import events
from trainers.engines import liveness

MAX_MARKS = 200
MAX_DELTA_EVENTS = 2_000
# By the plan's `all_reduce`: how the ranks of this run actually communicate.
COMMUNICATION = {
    "shared_memory": "Gradients are averaged through memory that the ranks of this machine share; "
    "all else that they tell each other goes over gloo.",
    "gloo": "The ranks talk to each other over gloo.",
    "nccl": "The ranks talk to each other over NCCL.",
}

Payload = dict[str, Any]


def message_for(
    view: RunView, since: int, chart_view: ChartView = PLAIN_VIEW, known: Known | None = None
) -> Payload:
    """Return what a client with the cursor `since` has not seen; a whole snapshot if necessary."""
    with view.lock:
        series = view.series
        series.ranks_a_node = ranks_a_node = max(1, view.config.world_size // view.config.num_nodes)
        behind = series.next_seq - since
        is_snapshot = since < 0 or behind > MAX_DELTA_EVENTS or behind < 0 or since <= series.rewound_at_seq
        first = 0 if is_snapshot else since
        message: Payload = {
            "type": "snapshot" if is_snapshot else "delta",
            "cursor": series.next_seq,
            "traces": series.snapshot(chart_view) if is_snapshot else series.delta(since, chart_view),
            "head": head(view, series),
            "marks": [mark for mark in series.marks[-MAX_MARKS:] if mark["seq"] >= first],
        }
        for kind in ("ranks", "devices", "sample"):
            newest = series.latest.get(kind)
            if newest is not None and newest["seq"] >= first:
                message[kind] = newest if kind == "sample" else _shown(newest[kind], chart_view, ranks_a_node)
        if view.config.num_nodes > 1 and ("ranks" in message or "devices" in message):
            rows = node_rows.of_run(series.latest, view.config.num_nodes, view.config.world_size)
            # The names once: with many machines they would be most of the message.
            message["nodes"] = {"fields": node_rows.FIELDS, "rows": [list(row.values()) for row in rows]}
        if series.fingerprints.newest_seq >= first:
            message["fingerprints"] = series.fingerprints.shown()
        now = Known(view)
        if is_snapshot or known is None or now.rank_history is not known.rank_history:
            message["rank_history"] = _shown(now.rank_history, chart_view, ranks_a_node)
        if is_snapshot or known is None or now.checkpoints is not known.checkpoints:
            message["checkpoints"] = now.checkpoints
        if is_snapshot or known is None or now.insights is not known.insights:
            message["insights"] = [asdict(insight) for insight in now.insights]
        confusion = series.evaluations.last.get("confusion")
        if confusion and series.evaluations.last["seq"] >= first:
            message["confusion"] = {
                "step": series.evaluations.last["step"],
                "counts": confusion,
                "class_names": series.plan.get("class_names"),
            }
        return message


def _shown(entries: list[Payload], chart_view: ChartView, ranks_a_node: int) -> list[Payload]:
    """Return the entries of ranks that a viewer looks at one by one."""
    return [entry for entry in entries if chart_view.shows(entry["rank"], ranks_a_node)]


class Known:
    """Parts of a message that rarely change, and are sent only after a change."""

    def __init__(self, view: RunView) -> None:
        self.checkpoints = view.checkpoints()
        self.insights = view.insights()
        self.rank_history = view.rank_history()

    def same_as(self, other: Known) -> tuple[bool, ...]:
        """Return which of the parts are those of another time."""
        return tuple(value is getattr(other, name) for name, value in vars(self).items())


def preview(view: RunView) -> Payload:
    """Return a preview of a run with a long file: some of its points, until all are read."""
    unread, size = view.unread()
    series = Series(view.config.world_size)
    series.feed(event_reader.taste(view.run.events))
    return {
        "type": "snapshot",
        "cursor": -1,
        "loading": round(1 - unread / max(1, size), 3),
        "traces": series.snapshot(),
        "head": head(view, series),
        "marks": [],
        "checkpoints": view.checkpoints(),
    }


def head(view: RunView, series: Series) -> Payload:
    """Return the current values of a run."""
    status = view.status()
    total_steps = series.plan.get("num_steps", view.total_steps)
    is_live = status.state in events.LIVE_STATES
    step = series.last_step.get("step", 0)
    steps_per_s = series.steps_per_s()
    is_training = status.state == "running" and steps_per_s is not None and total_steps is not None
    pace, verdict = pace_of.of_run(series, is_over=not is_live), view.verdict()
    # Between a click on Resume and the first event of the new start no time is counted.
    is_under_way = is_live and series.state.get("state") in events.LIVE_STATES
    now = time.time() if is_under_way else None
    evaluation = series.evaluations.last
    return {
        "state": status.state,
        # An engine may know better than the run itself why it was stopped.
        "reason": (status.state == "stopped" and status.error) or series.state.get("reason", ""),
        "doing": _doing(series) if status.state == "running" else None,
        "silence": liveness.silence(status, view.run),
        "detail": liveness.detail(status),
        "error": series.problem.get("message") or status.error,
        "hint": series.problem.get("hint"),
        "rank": series.problem.get("rank"),
        "traceback": series.problem.get("traceback"),
        "step": step,
        "num_steps": total_steps,
        "epoch": series.last_step.get("epoch", 0),
        "num_epochs": view.config.num_epochs,
        "num_ranks": view.config.world_size,
        "num_nodes": view.config.num_nodes,
        "global_batch": series.plan.get("global_batch"),
        "num_train": series.plan.get("num_train"),
        "num_validation": series.plan.get("num_validation"),
        "loss": series.last_step.get("loss"),
        "mean_loss": None if is_live else mean_loss(series),
        "learning_rate": series.last_step.get("lr"),
        "pace": None if pace is None else asdict(pace),
        "elapsed_s": round(series.active_s(now), 1),
        "paused_s": round(series.paused_s(now), 1),
        "eta_s": round((total_steps - step) / steps_per_s, 1)
        if is_training and steps_per_s and total_steps
        else None,
        "metrics": {
            name: None if value is None else float(f"{value:.5g}")
            for name, value in evaluation.get("metrics", {}).items()
        },
        "best": series.evaluations.best,
        "contended": view.contended(),
        "verdict": None if verdict is None else asdict(verdict),
        "time_unix_s": series.newest_unix_s,
        "communication": COMMUNICATION.get(series.plan.get("all_reduce") or "", ""),
    }


def mean_loss(series: Series) -> float | None:
    """Return the mean training loss over all steps; None before the first."""
    losses = series.steps.column("loss")
    return float(losses.mean(dtype=np.float64)) if len(losses) else None


def _doing(series: Series) -> str | None:
    """Return what rank 0 was doing when it last reported, in the words of the `ranks` event."""
    ranks = series.latest.get("ranks", {}).get("ranks", [])
    return next((rank.get("doing") for rank in ranks if rank["rank"] == 0), None)


def encode(message: Payload) -> bytes:
    """Encode a message as JSON; arrays become lists, NaN and infinity null."""
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)
