"""The live routes of the queue: all of it, one run's place, a new run's, and whether to show it."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException

from ddp_gui.auth.current_user import current_user
from ddp_gui.background.workers import Router
from ddp_gui.queue.before_start import expected_wait
from ddp_gui.queue.presenter import QueuePresenter
from ddp_gui.queue.store import QueueStoreError
from ddp_gui.runs.runs import RunStore
from trainers.contract.tickets import DeviceKind


def make_router(view: QueuePresenter, store: RunStore) -> Router:
    """Return the routes below `/live/queue`."""
    router = Router(prefix="/live/queue")

    @router.get("")
    def queue() -> dict[str, Any]:
        try:
            return view.page(current_user(), store.is_shown)
        except QueueStoreError as error:
            raise HTTPException(status_code=503, detail=str(error)) from error

    @router.get("/brief")
    def brief() -> dict[str, Any]:
        """Tell whether the navigation should link to the queue."""
        num_waiting = view.num_waiting
        is_shown = num_waiting > 0 or view.hands_on or current_user().name != ""
        return {"num_waiting": num_waiting, "is_shown": is_shown}

    @router.get("/expected")
    def expected(kind: DeviceKind, num_ranks: int, may_share: bool = False) -> dict[str, Any]:
        """Tell whether a run that is started now would wait."""
        try:
            kind = view.kind_to_wait_for(kind)
            return expected_wait(view.view(), current_user().name, kind, num_ranks, may_share=may_share)
        except QueueStoreError as error:
            raise HTTPException(status_code=503, detail=str(error)) from error

    @router.get("/run")
    def place(id: str) -> dict[str, Any]:  # noqa: A002 - the same name as in the page's address
        try:
            return view.place(store.open(id).run_id)
        except QueueStoreError as error:
            raise HTTPException(status_code=503, detail=str(error)) from error
        except ValueError as error:
            raise HTTPException(status_code=404, detail=str(error)) from error

    return router
