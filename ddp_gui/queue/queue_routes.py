"""Endpoints and routes of the queue."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import Router
from ddp_gui.launch import launcher
from ddp_gui.launch.launcher import NotWritableError
from ddp_gui.operations import Route, operation
from ddp_gui.queue import policy, snapshot
from ddp_gui.queue.policy import Limits, Waiting, decide, queue_order
from ddp_gui.queue.presenter import QueuePresenter, QueueView, place_text
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore
from trainers.contract.rundir import RunDirectory
from trainers.contract.tickets import DeviceKind
from trainers.files import typed
from trainers.machine.os_errors import explain

NEW = ""  # id of a run that does not exist yet


def expected_wait(
    view: QueueView, person: str, kind: DeviceKind, num_ranks: int, *, may_share: bool
) -> dict[str, Any]:
    """Return the place that a new run would get; `place` is None if it would start immediately."""
    now = time.time()
    run = Waiting(
        run_id=NEW,
        person=person,
        kind=kind,
        num_ranks=num_ranks,
        asked_unix_s=now,
        may_share=may_share,
    )
    situation = replace(view.snapshot.situation, waiting=[*view.snapshot.situation.waiting, run])
    if any(start.run_id == NEW for start in decide(situation, now)):
        return {"place": None, "starts_in_s": None, "words": ""}
    place = 1 + [queued.run_id for queued in queue_order(situation, now)].index(NEW)
    starts_in_s = snapshot.waiting_times(situation, view.ends_in_s, view.usual_s, now).get(NEW)
    return {
        "place": place,
        "starts_in_s": None if starts_in_s is None else round(starts_in_s, 1),
        "words": place_text(place, starts_in_s),
    }


_STOPPED_ALL = "A teacher has stopped all runs."
TO_PAUSE = "pause and resume the queue"


@dataclass
class QueueApi:
    """Endpoints that show and change the queue. Results are JSON values."""

    store: RunStore
    _scheduler: Scheduler
    _presenter: QueuePresenter

    @operation(route=Route(path="/live/queue"))
    def queue(self) -> dict[str, Any]:
        """Return the queue: queued runs with the reasons for waiting, live runs, allocations and limits."""
        return self._presenter.page(current_user(), self.store.is_shown)

    @operation(teacher="reorder the queue")
    def move_in_queue(self, run_id: str, place: int) -> dict[str, Any]:
        """Move a queued run to a place in the queue; 1 is next."""
        if isinstance(place, bool) or not isinstance(place, int | float) or place != place // 1:
            raise ValueError(f"place is {place!r:.80}; allowed: a whole number; 1 is the next place")
        order = self._scheduler.move(run_id, int(place))
        return {"order": order, "message": "Moved. The runs that are now ahead of this run stay ahead."}

    @operation(teacher=TO_PAUSE)
    def pause_queue(self) -> dict[str, Any]:
        """Pause the queue: no run starts until it is resumed; live runs continue."""
        self._scheduler.pause(True)
        return {"is_paused": True, "message": "The queue is paused: no run starts until it is resumed."}

    @operation(teacher=TO_PAUSE)
    def resume_queue(self) -> dict[str, Any]:
        """Resume the queue."""
        self._scheduler.pause(False)
        return {"is_paused": False, "message": "The queue is running again."}

    @operation(teacher="stop all runs")
    def stop_all(self) -> dict[str, Any]:
        """Pause the queue and stop every live run after a save; queued runs keep their places."""
        # Stop runs first: a queue that cannot be stored must not keep them alive.
        self._scheduler.pause_unstored()
        saving, unsaved, failed = list[str](), list[str](), list[str]()
        for running in self._scheduler.snapshot().situation.running:
            try:
                run = self.store.open(running.run_id)
                saves = launcher.stop_or_kill(run, _STOPPED_ALL)
                (saving if saves else unsaved).append(run.run_id)
            except NotWritableError as error:
                failed.append(f" {error}.")
            except ValueError:
                continue  # the run has ended
        message = f"{_runs(len(saving))} saving and will stop."
        if unsaved:
            message += (
                f" {_runs(len(unsaved))} stopping without a save, because the run's folder is not writable."
            )
        try:
            self._scheduler.pause(True)
            message += " The queue is paused; queued runs keep their places."
        except OSError as error:
            message += (
                " The queue is paused until this page ends, because the pause could not be stored: "
                f"{explain(error)}."
            )
        return {"stopping": [*saving, *unsaved], "message": message + "".join(failed)}

    @operation(teacher="set limits")
    def set_limits(self, values: dict[str, Any] | None, person: str | None = None) -> dict[str, Any]:
        """Set a user's limits, or the default limits if `person` is null. Null `values` remove a user's."""
        name = policy.validate_name(person)
        parsed = None if values is None and name is not None else typed.read(Limits, values or {})
        self._scheduler.set_limits(name, parsed)
        return {"limits": self._scheduler.snapshot().situation.rules.to_json(), "message": "Saved."}

    @operation(run="change")
    def use_occupied_gpus(self, run: RunDirectory) -> dict[str, Any]:
        """Let a queued run use GPUs that other programs are using."""
        self._scheduler.share_gpus(run)
        place = self._presenter.place(run.run_id, force_refresh=True)
        message = f"{place['words']}." if place["place"] else "It starts."
        return {"run_id": run.run_id, "place": place["place"], "message": message}


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count} runs are"


def make_router(scheduler: Scheduler, presenter: QueuePresenter, store: RunStore) -> Router:
    """Return further routes below `/live/queue`."""
    router = Router(prefix="/live/queue")

    @router.get("/brief")
    def brief() -> dict[str, Any]:
        """Return whether the navigation should link to the queue."""
        num_waiting = scheduler.num_waiting
        is_shown = num_waiting > 0 or scheduler.has_engine_queue or current_user().name != ""
        return {"num_waiting": num_waiting, "is_shown": is_shown}

    @router.get("/expected")
    def expected(kind: DeviceKind, num_ranks: int, may_share: bool = False) -> dict[str, Any]:
        """Return whether a run started now would wait."""
        kind = scheduler.kind_to_wait_for(kind)
        return expected_wait(presenter.view(), current_user().name, kind, num_ranks, may_share=may_share)

    @router.get("/run")
    def place(id: str) -> dict[str, Any]:  # noqa: A002 - same name as in the page's URL
        return presenter.place(store.open(id).run_id)

    return router
