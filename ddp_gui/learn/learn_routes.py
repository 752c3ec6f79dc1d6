"""The live routes of the lessons: the list, one lesson with its obstacles here, and what its runs showed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import HTTPException, Query

from ddp_gui.background.workers import Router
from ddp_gui.learn import conditions
from ddp_gui.learn import outcome as outcome_module
from ddp_gui.learn.fit import fit
from ddp_gui.learn.lesson import DrawnCurve, Lesson
from ddp_gui.learn.lesson_file import MAX_RUNS
from ddp_gui.learn.library import Library
from ddp_gui.learn.measures import RunNumbers
from ddp_gui.runs.runs import RunStore
from ddp_gui.train.api import Api

MAX_ATTEMPTS = 60
RunIds = Annotated[tuple[str, ...], Query(max_length=MAX_RUNS)]
# Each `question:choice:run`, the first two counted from 0. Matched in the handler, off the loop: FastAPI
# describes each of thousands of wrong ones on it.
AttemptIds = Annotated[tuple[str, ...], Query(max_length=MAX_ATTEMPTS)]
_ATTEMPT = re.compile(r"\d{1,3}:\d{1,3}:.{1,290}")


def make_router(library: Library, api: Api, store: RunStore) -> Router:
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

    def lesson_or_404(name: str) -> Lesson:
        try:
            return library.find(name)
        except ValueError as error:
            raise HTTPException(status_code=404, detail=str(error)) from error

    @router.get("/outcome")
    def outcome(name: str, run: RunIds = (), attempt: AttemptIds = ()) -> dict[str, Any]:
        found = lesson_or_404(name)
        if not all(map(_ATTEMPT.fullmatch, attempt)):
            raise HTTPException(status_code=422, detail="attempt must be question:choice:run")
        return outcome_of(found, store, run, [tuple(each.split(":", 2)) for each in attempt])

    @router.get("/lesson")
    def lesson(name: str) -> dict[str, Any]:
        found = lesson_or_404(name)
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


def outcome_of(
    lesson: Lesson, store: RunStore, run_ids: Sequence[str], attempts: Sequence[tuple[str, ...]] = ()
) -> dict[str, Any]:
    """Return what the runs of a lesson showed, of those that have ended and that the current user may see.

    Args:
        run_ids: in the order of the lesson's runs.
        attempts: question, choice (both counted from 0) and run of each, oldest first.
    """
    own: dict[conditions.RunName, RunNumbers] = {
        number: numbers
        for number, (run, run_id) in enumerate(zip(lesson.runs, run_ids, strict=False))
        if (numbers := outcome_module.numbers_of(store, run_id, run.name)) is not None
    }
    tried: dict[int, dict[conditions.RunName, RunNumbers]] = {}
    for question, choice, run_id in attempts:
        about = lesson.questions[int(question)].attempt if int(question) < len(lesson.questions) else None
        names = list(about.choices) if about is not None else []
        if (
            int(choice) < len(names)
            and (numbers := outcome_module.numbers_of(store, run_id, names[int(choice)])) is not None
        ):
            tried.setdefault(int(question), {})[names[int(choice)]] = numbers
    return outcome_module.of_lesson(lesson, own, tried)
