"""Background tasks of the server, from the page's start to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from fastapi import FastAPI

from ddp_gui.background.loop_delay import LoopDelay
from ddp_gui.gradio_routes.uploads import Uploads
from ddp_gui.queue.scheduler import Scheduler
from ddp_gui.runs.runs import RunStore
from trainers.engines.base import Engine
from trainers.machine.os_errors import explain


class Closeable(Protocol):
    """An object that owns processes, which must end with the page."""

    def close(self) -> None: ...


Lifespan = Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]

TIDY_EVERY_S = 30.0


def make_lifespan(
    store: RunStore,
    uploads: Uploads,
    closeables: Sequence[Closeable],
    scheduler: Scheduler,
    engine: Engine,
    delay: LoopDelay,
) -> Lifespan:
    """Return a lifespan that reads the run list, runs the queue, frees memory, and cleans up at the end."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        scheduler.begin()
        engine.preparation.begin()
        jobs = (_read_ahead(store), _tidy(store, uploads), delay.measure())
        tasks = [asyncio.create_task(job) for job in jobs]
        yield
        for task in tasks:
            task.cancel()
        engine.preparation.close()
        scheduler.close()
        _save_run_list(store)
        for closeable in closeables:
            closeable.close()

    return lifespan


async def _tidy(store: RunStore, uploads: Uploads) -> None:
    while True:
        await asyncio.sleep(TIDY_EVERY_S)
        await asyncio.to_thread(store.forget_unused)
        await asyncio.to_thread(_tidy_uploads, uploads)
        await asyncio.to_thread(_save_run_list, store)


def _tidy_uploads(uploads: Uploads) -> None:
    try:
        uploads.tidy()
    except OSError as error:
        print(f"Unused uploads could not be deleted ({explain(error)}).")


async def _read_ahead(store: RunStore) -> None:
    """Read the run list before a user opens it."""
    while await asyncio.to_thread(lambda: store.listing.changes().num_unread):
        await asyncio.sleep(0)


def _save_run_list(store: RunStore) -> None:
    try:
        store.listing.save()
    except (OSError, ValueError) as error:
        print(
            f"The list of runs could not be cached ({explain(error)}); the next start of the page will take "
            "longer to show it."
        )
