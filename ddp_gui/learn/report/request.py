"""Requests for a lab report: validation, collection of inputs, and routes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import HTTPException, Request

from ddp_gui.background.workers import SLOW, GeneratedFile, Router
from ddp_gui.http import front
from ddp_gui.launch import launcher
from ddp_gui.learn import code_lesson
from ddp_gui.learn.code_lesson import CodeLibrary
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import NUM_POINTS, DrawnCurve, Lesson
from ddp_gui.learn.report import document
from ddp_gui.machine.missing import list_versions
from ddp_gui.run import summary
from ddp_gui.runs import listing
from ddp_gui.runs.runs import RunStore
from trainers.contract.rundir import RunDirectory, is_run_id
from trainers.engines import liveness
from trainers.files import typed
from trainers.files.typed import Limit
from trainers.machine import host, nvml

MAX_NAME = 120
MAX_LESSONS = 60
MAX_RUNS = 120
MAX_RUNS_OF_A_LESSON = 40
MAX_TEXT = 200
MAX_TRIES = 1_000_000

Index = Annotated[int, Limit(low=0, high=MAX_TEXT - 1)]
Prediction = Index | Annotated[tuple[float, ...], Limit(least=NUM_POINTS, most=NUM_POINTS)] | None


@dataclass(frozen=True, kw_only=True)
class AttemptRun:
    """A run started by a question's attempt: the question (from 0) and the chosen setting."""

    question: Index
    choice: Annotated[str, Limit(most=MAX_TEXT)]
    run_id: str


@dataclass(frozen=True, kw_only=True)
class LessonDone:
    """A learner's work on a lesson.

    Attributes:
        prediction: index of a choice (from 0) or values of a drawn curve; None if it was not locked.
        runs: ids of the lesson's runs; None for a run that was not started.
        answers: index of the chosen answer of each question; None if it was not answered.
    """

    lesson: Annotated[str, Limit(least=1, most=MAX_TEXT)]
    prediction: Prediction = None
    runs: Annotated[tuple[str | None, ...], Limit(most=MAX_RUNS_OF_A_LESSON)] = ()
    attempts: Annotated[tuple[AttemptRun, ...], Limit(most=MAX_RUNS_OF_A_LESSON)] = ()
    answers: Annotated[tuple[Index | None, ...], Limit(most=MAX_RUNS_OF_A_LESSON)] = ()


@dataclass(frozen=True, kw_only=True)
class CodeDone:
    """A learner's work on a lesson in code: the latest run, and the number of runs."""

    lesson: Annotated[str, Limit(least=1, most=MAX_TEXT)]
    run_id: str
    num_tries: Annotated[int, Limit(low=0, high=MAX_TRIES)] = 1
    is_solution_shown: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """A report's author, lessons and additional runs."""

    name: Annotated[str, Limit(most=MAX_NAME)] = ""
    lessons: Annotated[tuple[LessonDone, ...], Limit(most=MAX_LESSONS)] = ()
    runs: Annotated[tuple[str, ...], Limit(most=MAX_RUNS)] = ()
    code_lessons: Annotated[tuple[CodeDone, ...], Limit(most=MAX_LESSONS)] = ()

    def __post_init__(self) -> None:
        ids = run_ids(self)
        if invalid := next((run_id for run_id in ids if not is_run_id(run_id)), None):
            raise ValueError(f"runs has {typed.shorten(invalid)}; allowed: ids of runs")
        if not self.lessons and not self.runs and not self.code_lessons:
            raise ValueError("a report needs a lesson or a run")
        if len(ids) > MAX_RUNS:
            raise ValueError(f"the report has {len(ids)} runs; allowed: at most {MAX_RUNS}")
        if len({lesson.lesson for lesson in self.lessons}) < len(self.lessons):
            raise ValueError("lessons has a lesson twice")


def parse(raw: Any) -> ReportRequest:
    """Parse and validate a request.

    Raises:
        ValueError: naming the invalid field and what is allowed.
    """
    request = typed.read(ReportRequest, raw)
    return replace(request, name=" ".join(request.name.split()), runs=tuple(dict.fromkeys(request.runs)))


def run_ids(request: ReportRequest) -> list[str]:
    """Return the distinct ids of all runs, beginning with the lessons' runs."""
    ids: list[str] = []
    for lesson in request.lessons:
        ids += filter(None, lesson.runs)
        ids += [attempt.run_id for attempt in lesson.attempts]
    ids += [code_lesson.run_id for code_lesson in request.code_lessons]
    return list(dict.fromkeys([*ids, *request.runs]))


Values = dict[str, Any]


class NoRunError(ValueError):
    """The current user can see none of the runs."""


@dataclass(frozen=True, kw_only=True)
class ReportSource:
    """The lesson library and the run store."""

    library: Library
    in_code: CodeLibrary
    store: RunStore


def gather_inputs(source: ReportSource, request: ReportRequest, now_unix_s: float) -> Values:
    """Return everything in a report except the runs' measurements, as JSON values.

    A run that was deleted or that the current user cannot see is included only by its id.

    Raises:
        ValueError: if a lesson does not exist.
        NoRunError: if the report would contain neither a lesson nor a run.
    """
    order = [lesson.name for lesson in source.library.read()[0]]
    lessons = {lesson.lesson: source.library.find(lesson.lesson) for lesson in request.lessons}
    runs = {run_id: _run(source.store, run_id) for run_id in run_ids(request)}
    in_code = [_gather_code(source, work) for work in request.code_lessons]
    if not request.lessons and not any(runs.values()):
        raise NoRunError("none of these runs still exists")
    done = sorted(request.lessons, key=lambda work: order.index(work.lesson) if work.lesson in order else 0)
    return {
        "name": request.name,
        "made_unix_s": now_unix_s,
        "lessons": [_gather_lesson(lessons[work.lesson], work, order) for work in done],
        "in_code": in_code,
        "runs": {run_id: info for run_id, info in runs.items() if info is not None},
        "others": list(request.runs),
        "num_lessons": len(order),
        "versions": list_versions(),
        "machine": _machine(),
    }


def _gather_lesson(lesson: Lesson, done: LessonDone, order: Sequence[str]) -> Values:
    return {
        "number": order.index(lesson.name) + 1 if lesson.name in order else None,
        "title": lesson.title,
        "summary": lesson.summary,
        "prediction": lesson.prediction_values(),
        "predicted": _predicted(lesson, done),
        "runs": [
            {"name": run.name, "run_id": run_id}
            for run, run_id in itertools.zip_longest(lesson.runs, done.runs[: len(lesson.runs)])
        ],
        "attempts": [
            asdict(attempt) for attempt in done.attempts if attempt.question < len(lesson.questions)
        ],
        "pictures": [asdict(picture) for picture in lesson.pictures],
        "questions": [
            asdict(question) | {"answer": _choice(answer, len(question.choices))}
            for question, answer in itertools.zip_longest(
                lesson.questions, done.answers[: len(lesson.questions)]
            )
        ],
    }


def _gather_code(source: ReportSource, done: CodeDone) -> Values:
    """Return the code that a learner ran, and the results of the checks."""
    lesson = source.in_code.find(done.lesson)
    try:
        result = code_lesson.result_of(lesson, source.store, done.run_id)
    except (OSError, ValueError):
        result = {"is_over": False, "is_passed": False, "checks": []}
    return {
        "title": lesson.title,
        "summary": lesson.summary,
        "num_tries": done.num_tries,
        "is_solution_shown": done.is_solution_shown,
        "code": code_lesson.code_of(source.store, done.run_id),
        "result": {name: result[name] for name in ("is_over", "is_passed", "checks")},
        "run_id": done.run_id,
    }


def _predicted(lesson: Lesson, done: LessonDone) -> int | list[float] | None:
    """Return the prediction if it is a valid answer to the current version of the lesson, else None."""
    prediction = lesson.prediction
    if isinstance(prediction, DrawnCurve):
        if not isinstance(done.prediction, tuple):
            return None
        return [min(max(value, prediction.low), prediction.high) for value in done.prediction]
    return _choice(done.prediction, len(prediction.choices))


def _choice(number: Any, num_choices: int) -> int | None:
    return number if isinstance(number, int) and number < num_choices else None


def _run(store: RunStore, run_id: str) -> Values | None:
    """Return facts about a run without reading its events; None if it cannot be seen or read."""
    try:
        run = store.open(run_id)
        return run_info(store, run)
    except (OSError, ValueError):
        return None


def run_info(store: RunStore, run: RunDirectory) -> Values:
    """Return facts about a run that do not come from its events.

    Raises:
        OSError, ValueError: if it cannot be read.
    """
    config, status = run.read_config(), liveness.read_status(run)
    catalogue = store.catalogue_for(run, config)
    strategy = catalogue.strategies.get(config.strategy)
    notes = listing.shown_name(run, config.name)
    facts: Mapping[str, Any] = listing.config_facts(config, catalogue)
    engine = liveness.engine_for(status)
    return {
        "run_id": run.run_id,
        "path": str(run.path.absolute()),
        "name": notes["name"],
        "tags": notes["tags"],
        "note": notes["note"],
        "state": status.state,
        "error": status.error,
        "labels": [facts["model_label"], facts["dataset_label"], facts["strategy_label"]],
        "num_ranks": config.world_size,
        "num_replicas": config.num_replicas(strategy.ranks_per_replica if strategy else "one"),
        "mistake": config.to_json().get("mistake", "none"),
        "fields": [
            {name: field[name] for name in ("field", "label", "topic", "value", "is_default")}
            for field in summary.fields_of(config, catalogue)
            if field["field"] != "name"
        ],
        "command": launcher.train_command(engine, config, run.path.parent),
        "created_unix_s": run.config.stat().st_mtime,
    }


def _machine() -> Values:
    """Describe the machine on which the page runs."""
    readings = [nvml.read_gpu(handle) for handle in nvml.all_gpus().values() if handle is not None]
    return {
        "cpu": host.cpu_name(),
        "num_cores": host.num_cores(),
        "memory_bytes": host.memory_bytes()[1],
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_total_bytes} for gpu in readings],
    }


# Maximum size of a request, enough for 60 lessons with 40 attempts each.
MAX_BYTES = 512 * 1024
MAX_PARTS = 20_000
MEDIA_TYPE = "text/html; charset=utf-8"


def make_router(library: Library, in_code: CodeLibrary, store: RunStore) -> Router:
    """Return the routes of the report below `/live/learn`."""
    router = Router(prefix="/live/learn/report")
    source = ReportSource(library=library, in_code=in_code, store=store)

    @router.post("")
    async def report(request: Request) -> GeneratedFile:
        body = await front.read_json_body(request, MAX_BYTES)
        file: GeneratedFile = await report_of_body(body)
        return file

    @SLOW.handler
    def report_of_body(body: bytes) -> GeneratedFile:
        try:
            raw = front.parse_json_body(body, max_parts=MAX_PARTS)
            if not isinstance(raw, dict):
                raise ValueError("a report request must be one JSON object")
        except ValueError as error:
            raise HTTPException(status_code=422, detail=str(error)) from error
        return _generate(source, raw)

    @router.get("")
    @SLOW.handler
    def report_of_runs(runs: str) -> GeneratedFile:
        return _generate(source, {"runs": list(filter(None, runs.split(",")))})

    return router


def _generate(source: ReportSource, raw: dict[str, Any]) -> GeneratedFile:
    now_unix_s = time.time()
    try:
        gathered = gather_inputs(source, parse(raw), now_unix_s)
    except NoRunError as error:
        raise HTTPException(status_code=404, detail=str(error)) from error
    except ValueError as error:
        raise HTTPException(status_code=422, detail=str(error)) from error
    day = time.strftime("%Y-%m-%d", time.localtime(now_unix_s))
    return GeneratedFile(SLOW, document.stream_report(gathered), f"lab-report-{day}.html", MEDIA_TYPE)
