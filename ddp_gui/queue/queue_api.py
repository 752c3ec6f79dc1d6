"""The named endpoints of the queue: its view for everybody, and the actions of a teacher."""

from __future__ import annotations

from typing import Any

from ddp_gui.auth import rights
from ddp_gui.auth.current_user import current_user
from ddp_gui.gradio_routes.endpoints import register
from ddp_gui.launch import launcher
from ddp_gui.launch.launcher import NotWritableError
from ddp_gui.launch.user_errors import in_plain_words
from ddp_gui.queue import person_limits
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore
from trainers.machine.os_errors import explain

_STOPPED_ALL = "A teacher has stopped all runs."


class QueueApi:
    """Shows and changes the queue; results are JSON values."""

    def __init__(self, store: RunStore, scheduler: Scheduler, view: QueuePresenter) -> None:
        self._store = store
        self._scheduler = scheduler
        self._view = view

    def queue(self) -> dict[str, Any]:
        """Return the queue: queued runs and why they wait, live runs, allocations, limits."""
        return in_plain_words(lambda: self._view.page(current_user(), self._store.is_shown))

    def move_in_queue(self, run_id: str, place: int) -> dict[str, Any]:
        """Move a queued run to a place in the queue, 1 being the next."""

        def move() -> dict[str, Any]:
            rights.require_teacher("reorder the queue")
            if isinstance(place, bool) or not isinstance(place, int | float) or place != place // 1:
                raise ValueError(f"place is {place!r:.80}, but allowed is: a whole number, 1 being the next")
            order = self._scheduler.move(run_id, int(place))
            return {"order": order, "message": "Moved. The runs that are now ahead of it stay ahead."}

        return in_plain_words(move)

    def pause_queue(self) -> dict[str, Any]:
        """Start no run from the queue until it is resumed; live runs continue."""
        return self._pause(True, "The queue is paused: no run starts until it is resumed.")

    def resume_queue(self) -> dict[str, Any]:
        """Resume starting runs from the queue."""
        return self._pause(False, "The queue is running again.")

    def stop_all(self) -> dict[str, Any]:
        """Pause the queue and stop every run, each after a save; queued runs keep their places."""

        def stop() -> dict[str, Any]:
            rights.require_teacher("stop all runs")
            # Runs are stopped first: a queue that cannot be stored must not keep them alive.
            self._scheduler.pause_unstored()
            saving, unsaved, failed = list[str](), list[str](), list[str]()
            for running in self._scheduler.snapshot().situation.running:
                try:
                    run = self._store.open(running.run_id)
                    saves = launcher.stop_surely(run, _STOPPED_ALL)
                    (saving if saves else unsaved).append(run.run_id)
                except NotWritableError as error:
                    failed.append(f" {error}.")
                except ValueError:
                    continue  # it has just ended
            message = f"{_runs(len(saving))} saving and will stop."
            if unsaved:
                message += f" {_runs(len(unsaved))} stopping without a save: the folder takes no command."
            try:
                self._scheduler.pause(True)
                message += " The queue is paused; queued runs keep their places."
            except OSError as error:
                message += f" The queue is paused while this page runs; it is not stored: {explain(error)}."
            return {"stopping": [*saving, *unsaved], "message": message + "".join(failed)}

        return in_plain_words(stop)

    def set_limits(self, values: dict[str, Any] | None, person: str | None = None) -> dict[str, Any]:
        """Set the limits of everybody, or of one person; null removes a person's own limits."""

        def change() -> dict[str, Any]:
            rights.require_teacher("set limits")
            name = person_limits.checked_name(person)
            parsed = None if values is None and name is not None else person_limits.parse(values or {})
            self._scheduler.set_limits(name, parsed)
            return {"limits": self._scheduler.snapshot().situation.rules.to_json(), "message": "Saved."}

        return in_plain_words(change)

    def use_occupied_gpus(self, run_id: str) -> dict[str, Any]:
        """Let a queued run use GPUs that other programs are using."""

        def share() -> dict[str, Any]:
            run = self._store.open_to_change(run_id)
            self._scheduler.share_gpus(run)
            place = self._view.place(run_id, afresh=True)
            words = f"{place['words']}." if place["place"] else "It starts."
            return {"run_id": run_id, "place": place["place"], "message": words}

        return in_plain_words(share)

    def register(self) -> None:
        """Add the endpoints to the Gradio app under construction."""
        register(
            self.queue,
            self.move_in_queue,
            self.pause_queue,
            self.resume_queue,
            self.stop_all,
            self.set_limits,
            self.use_occupied_gpus,
        )

    def _pause(self, is_paused: bool, message: str) -> dict[str, Any]:
        def pause() -> dict[str, Any]:
            rights.require_teacher("pause and resume the queue")
            self._scheduler.pause(is_paused)
            return {"is_paused": is_paused, "message": message}

        return in_plain_words(pause)


def _runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count} runs are"
