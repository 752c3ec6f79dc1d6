"""Reference lines of the validation chart: a trivial predictor, and a linear model on the same split.

The linear model is fitted once per run by a short-lived process at the lowest priority, and stored in
`references.json` in the run's directory.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from typing import Any

from ddp_gui.background import workers
from ddp_gui.background.workers import Router, TooManyError, Workers
from ddp_gui.events.run_view import RunView
from ddp_gui.runs.runs import RunStore
from trainers.contract import events
from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically
from trainers.machine.os_errors import explain

FILE = "references.json"
MODULE = "trainers.plugins.references"
# Live runs are fitted from this duration on, others after their end: fitting takes seconds of one core.
FIT_LIVE_AFTER_S = 60.0
MAX_LINES = 10
MAX_LABEL = 100
MAX_STORED = 1_000
FITTING = Workers("references", num_threads=1, per_person=1, max_requests=20)
TRIVIAL_LABELS = {
    "most_frequent_class": "always the most frequent class",
    "mean": "always the mean",
    "unigram": "each token by its frequency",
}

Lines = list[dict[str, Any]]


def make_router(store: RunStore) -> Router:
    """Return the route `/live/runs/…/references`."""
    router = Router(prefix="/live/runs/{run_id}/references")
    references = References()

    @router.get("")
    def get_references(run_id: str) -> dict[str, Any]:
        view = store.view(run_id)
        view.catch_up()
        return references.of_run(view)

    return router


class References:
    """The reference lines of runs, fitted on first request; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fitting: set[str] = set()
        # Results of runs whose directory is not writable; empty if this machine cannot read the run's data.
        self._unwritten: dict[str, Lines] = {}

    def of_run(self, view: RunView) -> dict[str, Any]:
        """Return `lines` with `label`, `metric` and `value`; `is_complete` if no more will follow."""
        with view.lock:
            plan = dict(view.series.plan)
            active_s, last_evaluation = view.series.active_s(), view.series.evaluations.last
        lines = list(_trivial_lines(plan))
        metric = events.primary_metric(last_evaluation.get("metrics", {}))
        if metric not in (None, "accuracy", "rmse") or not plan.get("num_train"):
            return {"lines": lines, "is_complete": True}
        stored = self._stored_lines(view.run)
        if stored is not None:
            return {"lines": [*lines, *stored], "is_complete": True}
        is_over = view.status().state not in events.LIVE_STATES
        if metric is not None and (is_over or active_s >= FIT_LIVE_AFTER_S):
            self._submit_fit(view, plan)
        return {"lines": lines, "is_complete": False}

    def _stored_lines(self, run: RunDirectory) -> Lines | None:
        with self._lock:
            if run.run_id in self._unwritten:
                return self._unwritten[run.run_id]
        try:
            return list(_parse_lines(read_json(run.path / FILE)))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None  # not fitted yet, or a copied run contains a different file with this name

    def _submit_fit(self, view: RunView, plan: dict[str, Any]) -> None:
        run_id = view.run.run_id
        with self._lock:
            if run_id in self._fitting:
                return
            self._fitting.add(run_id)
        try:
            FITTING.submit(lambda: self._fit(view, plan))
        except TooManyError:
            with self._lock:
                self._fitting.discard(run_id)

    def _fit(self, view: RunView, plan: dict[str, Any]) -> None:
        run, lines = view.run, Lines()
        try:
            answer = json.loads(b"".join(workers.module_output(MODULE, view.config.to_json())))
            is_same = all(answer[name] == plan.get(name) for name in ("num_train", "num_validation"))
            if not is_same:
                raise ValueError("the data has changed since the run")
            lines = list(_parse_lines(answer))
            write_json_atomically(run.path / FILE, answer)
        except (OSError, ValueError, LookupError) as error:
            print(
                f"{run.run_id}: the linear reference model could not be fitted ({explain(error)}).",
                flush=True,
            )
            self._remember(run.run_id, lines)
        finally:
            with self._lock:
                self._fitting.discard(run.run_id)

    def _remember(self, run_id: str, lines: Lines) -> None:
        with self._lock:
            while len(self._unwritten) >= MAX_STORED:
                del self._unwritten[next(iter(self._unwritten))]
            self._unwritten[run_id] = lines


def _trivial_lines(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    trivial = plan.get("trivial")
    if trivial is not None and trivial["predictor"] in TRIVIAL_LABELS:
        label = TRIVIAL_LABELS[trivial["predictor"]]
        yield {"label": label, "metric": trivial["metric"], "value": trivial["value"]}
        if trivial["predictor"] == "mean":
            yield {"label": label, "metric": "r2", "value": 0.0}


def _parse_lines(answer: Any) -> Iterator[dict[str, Any]]:
    """Yield the lines of a `references.json`, whose content is untrusted in a copied run.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: if the content is invalid.
    """
    for reference in answer["references"][:MAX_LINES]:
        label = reference["label"]
        if not isinstance(label, str) or len(label) > MAX_LABEL:
            raise ValueError("label is not a text of at most 100 characters")
        for metric, value in list(reference["metrics"].items())[:MAX_LINES]:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{metric} is not a number")
            yield {"label": f"{label}, same split", "metric": metric, "value": value}
