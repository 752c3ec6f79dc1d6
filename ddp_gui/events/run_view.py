"""The page's view of one run, and the messages that update clients."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from ddp_gui.events import event_reader, fold
from ddp_gui.events.analysis import insights, verdict
from ddp_gui.events.analysis import pace as pace_module
from ddp_gui.events.analysis.insights import Insight
from ddp_gui.events.analysis.verdict import Verdict
from ddp_gui.events.event_reader import DAMAGE
from ddp_gui.events.fold import MAX_RANKS
from ddp_gui.events.series import Series
from ddp_gui.events.tables import PLAIN_VIEW, ChartView
from trainers.contract import events
from trainers.contract.events import Event
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines import liveness
from trainers.files.plain_files import stat_uncached

STATUS_EVERY_S = 0.5
JUDGE_EVERY_S = 1.0
RANK_HISTORY_EVERY_S = 5.0
MIN_SHOWN_S = 10.0
# Time without an event after which the disk is tested: a live run writes an event every second.
SILENCE_S = 3.0
MAX_CHECKPOINTS_SHOWN = 50


class RunView:
    """The state of one run, updated by its viewers.

    Requests run concurrently in several threads: reading or feeding the series requires `lock`.
    """

    def __init__(self, run: RunDirectory, expected_steps: int | None) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.config = run.read_config()
        self.series = Series(self.config.world_size)
        self.used_at = time.monotonic()
        self._expected_steps = expected_steps
        self._offset = 0
        self._inode = 0
        self._is_careful = False
        self._grown_at = time.monotonic()
        self._num_events = 0
        self._num_damaged = 0
        self._seen_bytes = -1
        self._status: Status | None = None
        self._status_at = 0.0
        self._checkpoints: list[dict[str, Any]] = []
        self._checkpoints_mtime_ns = -1
        self._insights: list[Insight] = []
        self._seen_at: dict[str, float] = {}
        self._verdict: Verdict | None = None
        self._contended: list[dict[str, Any]] = []
        self._rank_history: list[dict[str, Any]] = []
        self._rank_history_at, self._rank_history_state = -RANK_HISTORY_EVERY_S, ""
        self._judged_at, self._judged_state, self._judged_seq = -JUDGE_EVERY_S, "", -1

    @property
    def total_steps(self) -> int | None:
        """The run's last step, as training reports it at the start; before, an estimate."""
        return self.series.plan.get("num_steps", self._expected_steps)

    @property
    def num_missing_events(self) -> int:
        """The number of events that are unreadable or missing in the file."""
        return max(self._num_damaged, self.series.next_seq - self._num_events)

    def has_grown(self) -> bool:
        """Return True if the file's size shows that `catch_up` would find something."""
        self.used_at = time.monotonic()
        size = self._size()
        return size is not None and size != self._seen_bytes

    def unread(self) -> tuple[int, int]:
        """Return the size of the unread events and of all events, in bytes."""
        size = self._size() or 0
        return max(0, size - self._offset), size

    def _size(self) -> int | None:
        try:
            return stat_uncached(self.run.events).st_size
        except FileNotFoundError:
            return None

    def catch_up(self, time_limit_s: float | None = None) -> bool:
        """Read the events written since the last call; return True if there were any.

        Args:
            time_limit_s: stop after about this time, even if there is more.
        """
        self.used_at = time.monotonic()
        ends_at = None if time_limit_s is None else self.used_at + time_limit_s
        has_read = False
        # Release the lock between batches, so that a long file does not block other requests.
        while self._take_batch():
            has_read = True
            if ends_at is not None and time.monotonic() > ends_at:
                break
        return has_read

    def _take_batch(self) -> bool:
        with self.lock:
            try:
                file_stat = stat_uncached(self.run.events)
            except FileNotFoundError:
                return False
            if file_stat.st_size != self._seen_bytes:
                self._seen_bytes, self._grown_at = file_stat.st_size, time.monotonic()
            if file_stat.st_ino != self._inode or file_stat.st_size < self._offset:
                # The directory was replaced, so this is another file: start over.
                self._start_over()
                self._inode = file_stat.st_ino
            if file_stat.st_size == self._offset:
                return False
            progress = self._offset, self._is_careful
            self._read()
            # Turning validation on restarts reading from the beginning, which also counts as progress.
            return (self._offset, self._is_careful) != progress

    def _start_over(self) -> None:
        self.series, self._offset = Series(self.config.world_size), 0
        self._num_events = self._num_damaged = 0

    def _read(self) -> None:
        if self._is_careful:
            batch, self._offset, num_damaged = event_reader.read_batch(self.run.events, self._offset)
            self._num_damaged += num_damaged
            self._take(batch)
            return
        try:
            batch, self._offset, _ = event_reader.read_batch(self.run.events, self._offset, is_careful=False)
            self._take(batch)
        except DAMAGE:
            self._is_careful = True
        if self._is_careful or self._num_events != self.series.next_seq:
            # Lines are damaged or missing: read the file again from the beginning, and validate every event.
            self._is_careful = True
            self._start_over()
            self._read()

    def _take(self, batch: list[Event]) -> None:
        if any(fold.is_start(event) for event in batch):
            self.config = self.run.read_config()  # because a run can be resumed with another number of ranks
            self.series.num_ranks = min(self.config.world_size, MAX_RANKS)
        self.series.feed(batch)
        self._num_events += len(batch)

    def status(self) -> Status:
        """Return the run's actual state, read at most twice a second."""
        now = time.monotonic()
        if self._status is None or now - self._status_at > STATUS_EVERY_S:
            self._status, self._status_at = liveness.read_status(self.run), now
        return self._status

    def refresh_status(self) -> None:
        """Read the state again at the next call of `status`."""
        self._status_at = 0.0

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return up to fifty complete checkpoints, latest first; the same list until they change."""
        try:
            mtime_ns = self.run.checkpoints.stat().st_mtime_ns
        except FileNotFoundError:
            return self._checkpoints
        if mtime_ns != self._checkpoints_mtime_ns:
            self._checkpoints_mtime_ns = mtime_ns
            newest_first = sorted(self.run.list_checkpoints(), key=lambda item: -item.saved_unix_s)
            self._checkpoints = [
                {name: getattr(item, name) for name in ("step", "size_bytes", "saved_unix_s", "reason")}
                for item in newest_first[:MAX_CHECKPOINTS_SHOWN]
            ]
        return self._checkpoints

    def insights(self) -> list[Insight]:
        """Return the run's insights. Returns the same list object while nothing changes."""
        self._judge()
        return self._insights

    def verdict(self) -> Verdict | None:
        """Return the verdict on the run's learning; None before its first step, and if it failed."""
        self._judge()
        return self._verdict

    def rank_history(self) -> list[dict[str, Any]]:
        """Return the history of each rank's step times. Returns the same list object for a few seconds."""
        now, state = time.monotonic(), self.status().state
        if now - self._rank_history_at > RANK_HISTORY_EVERY_S or state != self._rank_history_state:
            self._rank_history_at, self._rank_history_state = now, state
            self._rank_history = pace_module.rank_history_of_run(self.series)
        return self._rank_history

    def contended(self) -> list[dict[str, Any]]:
        """Return the spans in which other programs used the run's processor."""
        self._judge()
        return self._contended

    def _judge(self) -> None:
        now, state, seq = time.monotonic(), self.status().state, self.series.next_seq
        is_live = state in events.LIVE_STATES
        # The last message about an ended run must not contain a verdict on a partly read file.
        is_complete = is_live or seq == self._judged_seq
        if now - self._judged_at <= JUDGE_EVERY_S and state == self._judged_state and is_complete:
            return
        self._judged_at, self._judged_state, self._judged_seq = now, state, seq
        current = insights.find(self.series, self.config, state)
        self._contended = [asdict(span) for span in insights.contended_spans(self.series.load)]
        self._verdict = verdict.judge(self.series, state, current)
        current = insights.damage_insights(self.num_missing_events) + current
        if is_live and now - self._grown_at > SILENCE_S:
            current = insights.check_disk(self.run.path) + current
        displayed = self._with_recent(current, now) if is_live else current
        if displayed != self._insights:
            self._insights = displayed

    def _with_recent(self, current: list[Insight], now: float) -> list[Insight]:
        """Return the insights, including recent ones, so that they do not flicker."""
        codes = {insight.code for insight in current}
        self._seen_at |= dict.fromkeys(codes, now)
        recent = [item for item in self._insights if item.code not in codes]
        return current + [item for item in recent if now - self._seen_at[item.code] < MIN_SHOWN_S]


MAX_MARKS = 200
MAX_DELTA_EVENTS = 2_000
# Sentences about the communication of the ranks, by the plan's `all_reduce`.
COMMUNICATION = {
    "shared_memory": "Gradients are averaged through shared memory of this machine; all other communication "
    "uses gloo.",
    "gloo": "The ranks communicate over gloo.",
    "nccl": "The ranks communicate over NCCL.",
}

Payload = dict[str, Any]


def message_for(
    view: RunView, since: int, chart_view: ChartView = PLAIN_VIEW, known: RareParts | None = None
) -> Payload:
    """Return the changes since the cursor `since` for a client; a complete snapshot if necessary."""
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
            "head": head_message(view, series),
            "marks": [mark for mark in series.marks[-MAX_MARKS:] if mark["seq"] >= first],
        }
        for kind in ("ranks", "devices", "sample"):
            newest = series.latest.get(kind)
            if newest is not None and newest["seq"] >= first:
                message[kind] = newest if kind == "sample" else _shown(newest[kind], chart_view, ranks_a_node)
        if view.config.num_nodes > 1 and ("ranks" in message or "devices" in message):
            rows = fold.node_rows(series.latest, view.config.num_nodes, view.config.world_size)
            # Send field names only once: with many machines, they would be most of the message.
            fields = list(rows[0]) if rows else []
            message["nodes"] = {"fields": fields, "rows": [list(row.values()) for row in rows]}
        if series.script and series.script["seq"] >= first:
            message["script"] = series.script
        if series.fingerprints.newest_seq >= first:
            message["fingerprints"] = series.fingerprints.shown()
        now = RareParts(view)
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
    """Return the entries of ranks that a viewer sees individually."""
    return [entry for entry in entries if chart_view.shows(entry["rank"], ranks_a_node)]


class RareParts:
    """Parts of a message that rarely change and are sent only after a change."""

    def __init__(self, view: RunView) -> None:
        self.checkpoints = view.checkpoints()
        self.insights = view.insights()
        self.rank_history = view.rank_history()

    def same_as(self, other: RareParts) -> tuple[bool, ...]:
        """Return for each part whether it is the same object as in another `RareParts`."""
        return tuple(value is getattr(other, name) for name, value in vars(self).items())


def preview_message(view: RunView) -> Payload:
    """Return a preview of a run with a long file: a part of its points, until all are read."""
    unread, size = view.unread()
    series = Series(view.config.world_size)
    series.feed(event_reader.sample_events(view.run.events))
    return {
        "type": "snapshot",
        "cursor": -1,
        "loading": round(1 - unread / max(1, size), 3),
        "traces": series.snapshot(),
        "head": head_message(view, series),
        "marks": [],
        "checkpoints": view.checkpoints(),
    }


def head_message(view: RunView, series: Series) -> Payload:
    """Return the current values of a run."""
    status = view.status()
    total_steps = series.plan.get("num_steps", view.total_steps)
    is_live = status.state in events.LIVE_STATES
    step = series.last_step.get("step", 0)
    steps_per_s = series.steps_per_s()
    is_training = status.state == "running" and steps_per_s is not None and total_steps is not None
    pace, verdict = pace_module.pace_of_run(series, is_over=not is_live), view.verdict()
    # Count no active time between a click on Resume and the first event of the new start.
    is_under_way = is_live and series.state.get("state") in events.LIVE_STATES
    now = time.time() if is_under_way else None
    evaluation = series.evaluations.last
    return {
        "state": status.state,
        # Prefer the engine's reason for a stop, which may be more exact than the run's.
        "reason": (status.state == "stopped" and status.error) or series.state.get("reason", ""),
        "doing": _doing(series) if status.state == "running" else None,
        "silence": liveness.silence(view.run, status),
        "detail": liveness.detail(view.run, status),
        "error": series.problem.get("message") or status.error,
        "hint": series.problem.get("hint"),
        "rank": series.problem.get("rank"),
        "traceback": series.problem.get("traceback"),
        "step": step,
        "num_steps": total_steps,
        "epoch": series.last_step.get("epoch", 0),
        "num_epochs": series.script.get("num_epochs") if view.config.is_script else view.config.num_epochs,
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
    """Return rank 0's activity in its last report, as in the `ranks` event."""
    ranks = series.latest.get("ranks", {}).get("ranks", [])
    return next((rank.get("doing") for rank in ranks if rank["rank"] == 0), None)


def encode_message(message: Payload) -> bytes:
    """Encode a message as JSON; arrays become lists, NaN and infinity null."""
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY)
