"""The live routes of the lessons: the list, and one lesson with what is in its way here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import HTTPException

from ddp_gui.background.workers import Router
from ddp_gui.learn.fit import fit
from ddp_gui.learn.lesson import DrawnCurve
from ddp_gui.learn.library import Library
from ddp_gui.train.api import Api


def make_router(library: Library, api: Api) -> Router:
    """Return the routes below `/live/learn`."""
    router = Router(prefix="/live/learn")

    @router.get("")
    def lessons() -> dict[str, Any]:
        found, broken = library.read()
        fields = ("name", "title", "summary", "minutes")
        return {
            "lessons": [{name: getattr(lesson, name) for name in fields} for lesson in found],
            "broken": [asdict(each) for each in broken],
        }

    @router.get("/lesson")
    def lesson(name: str) -> dict[str, Any]:
        try:
            found = library.find(name)
        except ValueError as error:
            raise HTTPException(status_code=404, detail=str(error)) from error
        names = [each.name for each in library.read()[0]]
        after = names[names.index(name) + 1 :] if name in names else []
        fitted = fit(found, api.plan)
        kind = "curve" if isinstance(found.prediction, DrawnCurve) else "choice"
        return asdict(found) | {
            "number": names.index(name) + 1,
            "next": after[0] if after else None,
            "prediction": asdict(found.prediction) | {"kind": kind},
            "obstacles": fitted.obstacles,
            "way": fitted.way,
        }

    return router
