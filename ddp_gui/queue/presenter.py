"""Presentation of the queue: places, estimates and reasons as text."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ddp_gui.auth.rights import Person
from ddp_gui.plan.plan import ranks_text
from ddp_gui.queue import snapshot as snapshot_module
from ddp_gui.queue import starter
from ddp_gui.queue.policy import (
    RULE,
    Running,
    Situation,
    Waiting,
    could_fit,
    exceeds_limit,
    queue_order,
    ranks_in_use,
)
from ddp_gui.queue.scheduler import Scheduler, StartResult
from ddp_gui.queue.snapshot import QueueSnapshot
from ddp_gui.runs.runs import RunStore
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory, is_run_id
from trainers.contract.status import StatusError
from trainers.engines import liveness
from trainers.engines.base import Description, EngineJob, EngineQueue

MaySee = Callable[[str], bool]

# Maximum age of a snapshot that viewers share.
REFRESH_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """The queue at one moment, with estimated start and end times.

    Attributes:
        usual_s: recent median duration of a run; None if none has ended.
    """

    snapshot: QueueSnapshot
    order: list[Waiting]
    starts_in_s: Mapping[str, float]
    ends_in_s: Mapping[str, float | None]
    usual_s: float | None

    def position_of(self, run_id: str) -> int | None:
        """Return a run's place (1 is next); None if it is not queued."""
        return next((place for place, run in enumerate(self.order, 1) if run.run_id == run_id), None)


class QueuePresenter:
    """Prepares the queue for display on the pages."""

    def __init__(self, scheduler: Scheduler, store: RunStore) -> None:
        self._scheduler = scheduler
        self._store = store
        self._lock = threading.Lock()
        self._view: QueueView | None = None
        self._viewed_at = 0.0
        self._viewed_changes = 0

    def view(self, *, force_refresh: bool = False) -> QueueView:
        """Return the queue, at most `REFRESH_EVERY_S` old but with all changes made on this page; current if
        `force_refresh`.
        """
        with self._lock:
            num_changes = self._scheduler.num_changes
            is_old = time.monotonic() - self._viewed_at > REFRESH_EVERY_S
            if force_refresh or self._view is None or is_old or num_changes != self._viewed_changes:
                self._view = self._build_view(self._scheduler.snapshot())
                self._viewed_at = time.monotonic()
                self._viewed_changes = num_changes
            return self._view

    def _build_view(self, snapshot: QueueSnapshot) -> QueueView:
        now, situation = time.time(), snapshot.situation
        ends_in_s = {
            run.run_id: snapshot_module.limit_remaining_s(self._remaining_s(run), run, situation, now)
            for run in situation.running
        }
        # Skip spans without a positive length: the clock was set back.
        spans = ((span.began_unix_s, span.ended_unix_s) for span in situation.ended)
        durations_s = [end - start for start, end in spans if end > start]
        usual_s = statistics.median(durations_s) if durations_s else None
        return QueueView(
            snapshot=snapshot,
            order=queue_order(situation, now),
            starts_in_s=snapshot_module.waiting_times(situation, ends_in_s, usual_s, now),
            ends_in_s=ends_in_s,
            usual_s=usual_s,
        )

    def _remaining_s(self, run: Running) -> float | None:
        """Return a run's remaining duration at its average speed so far; None before its first step."""
        try:
            row = self._store.listing.row(run.run_id)
        except ValueError:
            return None
        step, num_steps, took_s = row.get("step"), row.get("num_steps"), row.get("took_s")
        if not step or not num_steps or not took_s or row["state"] != "running":
            return None
        remaining_s: float = took_s * (num_steps - step) / step
        return max(0.0, remaining_s)

    # A single run

    def places(self) -> dict[str, int]:
        """Return the place of every queued run. Does no I/O if the queue is empty."""
        if not self._scheduler.num_waiting:
            return {}
        return {run.run_id: place for place, run in enumerate(self.view().order, 1)}

    def describe_place(self, placement: StartResult) -> str:
        """Return the place of a run that has just been queued, and its estimated start, as text."""
        assert placement.place is not None
        starts_in_s = self._build_view(placement.snapshot).starts_in_s
        return place_text(placement.place, starts_in_s.get(placement.run.run_id))

    def place(self, run_id: str, *, force_refresh: bool = False) -> dict[str, Any]:
        """Describe a queued run; `place` is None if it is not in this queue."""
        view = self.view(force_refresh=force_refresh)
        place = view.position_of(run_id)
        if place is None:
            return _describe_place_elsewhere(self._store.open(run_id), len(view.order))
        run = view.order[place - 1]
        starts_in_s = view.starts_in_s.get(run_id)
        return {
            "place": place,
            "num_waiting": len(view.order),
            "starts_in_s": None if starts_in_s is None else round(starts_in_s, 1),
            "words": place_text(place, starts_in_s),
            "why": waiting_reason(run, place, view.snapshot),
            "can_share_gpus": _can_share_gpus(run, view.snapshot),
        }

    # The full queue

    def page(self, person: Person, may_see: MaySee) -> dict[str, Any]:
        """Return the queue for a user; runs are named only if `may_see(run_id)` is True."""
        view = self.view()
        situation = view.snapshot.situation
        labels = RunLabels(self._store, person, may_see)
        waiting = [
            {
                **labels.describe(run),
                "place": place,
                "asked_unix_s": run.asked_unix_s,
                "starts_in_s": _rounded(view.starts_in_s.get(run.run_id)),
                "why": waiting_reason(run, place, view.snapshot),
                "can_share_gpus": _can_share_gpus(run, view.snapshot),
            }
            for place, run in enumerate(view.order, 1)
        ]
        running = [
            {
                **labels.describe(run),
                "began_unix_s": run.began_unix_s,
                "ends_in_s": _rounded(view.ends_in_s.get(run.run_id)),
                "gpus": [gpu.index for gpu in view.snapshot.devices.gpus if gpu.uuid in run.gpus],
            }
            for run in situation.running
        ]
        return {
            "is_paused": situation.is_paused,
            "trouble": self._scheduler.trouble,
            "rule": RULE,
            "devices": _devices(view.snapshot, labels),
            "waiting": waiting,
            "running": running,
            "may_manage": person.is_teacher,
            "limits": self._limits(person, situation),
            "engine": None
            if (engine_queue := self._scheduler.engine_queue()) is None
            else describe_jobs(engine_queue, labels),
        }

    def _limits(self, person: Person, situation: Situation) -> dict[str, Any]:
        """Return the current user's limits and usage, and for teachers all limits."""
        own_limits = situation.rules.limits_of(person.name)
        used = {"num_ranks": ranks_in_use(situation.running).get(person.name, 0)}
        if own_limits.disk_bytes is not None:
            used["disk_bytes"] = sum(starter.bytes_by_run(self._store.runs_dir, person.name).values())
        values: dict[str, Any] = {"mine": asdict(own_limits), "used": used}
        return values | (situation.rules.to_json() if person.is_teacher else {})


class RunLabels:
    """Describes runs, without names that the user may not see."""

    def __init__(self, store: RunStore, person: Person, may_see: MaySee) -> None:
        self.store, self._person, self.may_see = store, person, may_see

    def describe(self, run: Waiting | Running) -> dict[str, Any]:
        may_see = self.may_see(run.run_id)
        return {
            "run_id": run.run_id if may_see else None,
            "name": self.name_of(run.run_id) if may_see else None,
            "person": run.person if may_see else None,
            "is_mine": run.person == self._person.name,
            "num_ranks": run.num_ranks,
            "kind": run.kind,
        }

    def name_of(self, run_id: str) -> str:
        try:
            return str(self.store.listing.row(run_id)["name"])
        except ValueError:
            return run_id


# Prefix of a run's job name, followed by the run's id.
JOB_NAME = "ddp-"


_JOB_FIELDS = {field.name for field in fields(EngineJob)} - {"handle"}


def describe_jobs(queue: EngineQueue, labels: RunLabels) -> dict[str, Any]:
    """Return the engine's own queue as JSON values for the page."""
    jobs = []
    for job in queue.jobs:
        values = {name: value for name, value in asdict(job).items() if name in _JOB_FIELDS} | {
            "run_id": None
        }
        run_id = _run_id_of_job(job, labels.store.runs_dir)
        if run_id is not None and labels.may_see(run_id):
            values |= {"run_id": run_id, "name": labels.name_of(run_id)}
        jobs.append(values)
    return {"name": queue.name, "silent_since_unix_s": queue.silent_since_unix_s, "jobs": jobs}


def _run_id_of_job(job: EngineJob, runs_dir: Path) -> str | None:
    """Return the id of this page's run that the job executes; None for any other job of the user."""
    run_id = job.name.removeprefix(JOB_NAME)
    if run_id == job.name or not is_run_id(run_id):
        return None
    try:
        status = status_file.read(RunDirectory(runs_dir / run_id).status)
    except (OSError, StatusError):
        return None
    # Compare the handle: a resumed run has a different job.
    return run_id if status is not None and status.handle == job.handle else None


def _devices(snapshot: QueueSnapshot, labels: RunLabels) -> dict[str, Any]:
    """Return the users of each GPU, and the number of allocated CPU ranks."""
    running = snapshot.situation.running
    run_by_gpu = {uuid: run for run in running for uuid in run.gpus}
    gpus = [
        {
            "index": gpu.index,
            "run": labels.describe(run_by_gpu[gpu.uuid]) if gpu.uuid in run_by_gpu else None,
            "others": [
                *snapshot.devices.users_of(gpu.uuid).other_programs,
                *_machine_check_label(gpu.uuid, snapshot),
            ],
        }
        for gpu in snapshot.devices.gpus
    ]
    num_cpu_ranks_used = sum(run.num_ranks for run in running if run.kind == "cpu")
    return {
        "gpus": gpus,
        "cpu_ranks": snapshot.devices.cpu_ranks,
        "cpu_ranks_used": num_cpu_ranks_used,
        "note": snapshot.devices.note,
    }


def _machine_check_label(uuid: str, snapshot: QueueSnapshot) -> list[str]:
    return ["the check of this machine"] if uuid in snapshot.devices.being_checked else []


def place_text(place: int, starts_in_s: float | None) -> str:
    """Describe a place in the queue and the estimated start time as text."""
    if starts_in_s is None:
        return f"{ordinal(place)} in the queue; start time unknown"
    return f"{ordinal(place)} in the queue, starts in {format_estimate(starts_in_s)}"


def ordinal(number: int) -> str:
    """Format an ordinal: 1st, 2nd, 3rd, 4th, 11th …"""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def format_estimate(seconds: float) -> str:
    """Format an estimated duration."""
    if seconds < 45:
        return "less than a minute"
    if seconds < 3600:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {seconds / 3600:.1f} h"


def waiting_reason(run: Waiting, place: int, snapshot: QueueSnapshot) -> str:
    """Return the reason why a run waits, as a sentence."""
    situation = snapshot.situation
    needs = ranks_text(run.num_ranks, run.kind)
    if situation.is_paused:
        return "The queue is paused: no run starts until a teacher resumes it."
    if not could_fit(run, situation.capacity):
        return _reason_it_cannot_start(run, needs, snapshot)
    num_ranks_in_use = ranks_in_use(situation.running)
    if exceeds_limit(run, num_ranks_in_use, situation.rules):
        limit = situation.rules.limits_of(run.person).num_ranks
        return (
            f"It needs {needs}. The limit per user is {limit}, and its owner currently uses "
            f"{num_ranks_in_use[run.person]}."
        )
    if run.kind == "cuda" and snapshot.devices.being_checked:
        return (
            f"It needs {needs}. A check of this machine is running; runs get GPUs again when the check ends."
        )
    if place == 1:
        return f"It needs {needs} and starts as soon as enough are free."
    return f"It needs {needs}. Other runs are ahead of it."


def _reason_it_cannot_start(run: Waiting, needs: str, snapshot: QueueSnapshot) -> str:
    capacity = snapshot.situation.capacity
    if run.kind == "cpu":
        return (
            f"It needs {needs}, but this page allows only {capacity.cpu_ranks}, so it can never start. "
            "Remove it from the queue."
        )
    if run.num_ranks > len(capacity.gpus):
        note = "" if snapshot.devices.note is None else f" {snapshot.devices.note}"
        num_usable = f"only {len(capacity.gpus)} can be used" if capacity.gpus else "none can be used"
        return (
            f"It needs {needs}, but {num_usable} on this machine, so it can never start. Remove it from the "
            f"queue.{note}"
        )
    users = [
        f"GPU {gpu.index}: {', '.join(programs)}"
        for gpu in snapshot.devices.gpus
        if (programs := snapshot.devices.users_of(gpu.uuid).other_programs)
    ]
    return (
        f"It needs {needs}, but other programs are using some of the GPUs ({'; '.join(users)}). It starts "
        "when these programs end, or if you allow it to share the GPUs."
    )


def _describe_place_elsewhere(run: RunDirectory, num_waiting: int) -> dict[str, Any]:
    """Describe a run that is not in this queue; it may wait in its engine's queue."""
    status = liveness.read_status(run)
    engine = liveness.engine_for(status)
    is_queued = status.state == "queued"
    description = engine.describe(run, status, is_queued=True) if is_queued else Description()
    starts_unix_s, text = description.starts_unix_s, description.place
    starts_in_s = None if starts_unix_s is None else max(0.0, starts_unix_s - time.time())
    if starts_in_s is not None:
        text += f", starts in {format_estimate(starts_in_s)}"
    return {
        "place": None,
        "num_waiting": num_waiting,
        "starts_in_s": _rounded(starts_in_s),
        "words": "" if description.reason is None else text,
        "why": description.reason or "",
        "can_share_gpus": False,
    }


def _can_share_gpus(run: Waiting, snapshot: QueueSnapshot) -> bool:
    """Return True if the run could start by sharing GPUs that other programs use."""
    return run.kind == "cuda" and not run.may_share and bool(snapshot.situation.capacity.occupied)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
