"""The route of the lab report: what somebody did in lessons, and runs, as one HTML file."""

from __future__ import annotations

import time
from typing import Any

from fastapi import HTTPException, Request

from ddp_gui.background.made_file import MadeFile
from ddp_gui.background.workers import SLOW, Router
from ddp_gui.http import json_body
from ddp_gui.learn.library import Library
from ddp_gui.learn.report import document, gather
from ddp_gui.learn.report import request as request_module
from ddp_gui.learn.report.gather import NoRunError, Source
from ddp_gui.runs.runs import RunStore

# Of 60 lessons with 40 attempts each.
MAX_BYTES = 512 * 1024
MAX_PARTS = 20_000
MEDIA_TYPE = "text/html; charset=utf-8"


def make_router(library: Library, store: RunStore) -> Router:
    """Return the routes of the report below `/live/learn`."""
    router = Router(prefix="/live/learn/report")
    source = Source(library=library, store=store)

    @router.post("")
    async def report(request: Request) -> MadeFile:
        body = await json_body.read(request, MAX_BYTES)
        made: MadeFile = await made_of_body(body)
        return made

    @SLOW.handler
    def made_of_body(body: bytes) -> MadeFile:
        try:
            raw = json_body.parse(body, max_parts=MAX_PARTS)
            if not isinstance(raw, dict):
                raise ValueError("a report is asked for with one JSON object")
        except ValueError as error:
            raise HTTPException(status_code=422, detail=str(error)) from error
        return _made(source, raw)

    @router.get("")
    @SLOW.handler
    def report_of_runs(runs: str) -> MadeFile:
        return _made(source, {"runs": list(filter(None, runs.split(",")))})

    return router


def _made(source: Source, raw: dict[str, Any]) -> MadeFile:
    now_unix_s = time.time()
    try:
        gathered = gather.gather(source, request_module.parse(raw), now_unix_s)
    except NoRunError as error:
        raise HTTPException(status_code=404, detail=str(error)) from error
    except ValueError as error:
        raise HTTPException(status_code=422, detail=str(error)) from error
    day = time.strftime("%Y-%m-%d", time.localtime(now_unix_s))
    return MadeFile(SLOW, document.beside(gathered), f"lab-report-{day}.html", MEDIA_TYPE)
