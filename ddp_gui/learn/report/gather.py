"""Gathers what a report is made from, as the current user may see it; another process reads the events."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddp_gui.launch import commands
from ddp_gui.learn.lesson import DrawnCurve, Lesson
from ddp_gui.learn.library import Library
from ddp_gui.learn.report import request as request_module
from ddp_gui.learn.report.request import LessonDone, Request
from ddp_gui.machine.versions import list_versions
from ddp_gui.run import summary
from ddp_gui.runs import facts, notes
from ddp_gui.runs.runs import RunStore
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.machine import hardware, host, processor

Values = dict[str, Any]


class NoRunError(ValueError):
    """None of the runs can be seen by the current user."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where lessons and runs are found."""

    library: Library
    store: RunStore


def gather(source: Source, request: Request, now_unix_s: float) -> Values:
    """Return all of a report but what the runs measured, as JSON values.

    A run that was deleted, or that the current user may not see, is in it by its id alone.

    Raises:
        ValueError: when there is no such lesson.
        NoRunError: when it would have neither a lesson nor a run.
    """
    order = [lesson.name for lesson in source.library.read()[0]]
    found = {lesson.lesson: source.library.find(lesson.lesson) for lesson in request.lessons}
    runs = {run_id: _run(source.store, run_id) for run_id in request_module.run_ids(request)}
    if not request.lessons and not any(runs.values()):
        raise NoRunError("none of these runs is there any more")
    done = sorted(request.lessons, key=lambda each: order.index(each.lesson) if each.lesson in order else 0)
    return {
        "name": request.name,
        "made_unix_s": now_unix_s,
        "lessons": [_lesson(found[each.lesson], each, order) for each in done],
        "runs": {run_id: about for run_id, about in runs.items() if about is not None},
        "others": list(request.runs),
        "num_lessons": len(order),
        "versions": list_versions(),
        "machine": _machine(),
    }


def _lesson(lesson: Lesson, done: LessonDone, order: Sequence[str]) -> Values:
    kind = "curve" if isinstance(lesson.prediction, DrawnCurve) else "choice"
    return {
        "number": order.index(lesson.name) + 1 if lesson.name in order else None,
        "title": lesson.title,
        "summary": lesson.summary,
        "prediction": asdict(lesson.prediction) | {"kind": kind},
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
            {
                "question": question.question,
                "choices": question.choices,
                "right": question.right,
                "measured": question.measured,
                "because": question.because,
                "answer": _choice(done.answers.get(number), len(question.choices)),
            }
            for number, question in enumerate(lesson.questions)
        ],
    }


def _predicted(lesson: Lesson, done: LessonDone) -> int | list[float] | None:
    """Return what was predicted, where it is an answer to the lesson as it is now."""
    asked = lesson.prediction
    if isinstance(asked, DrawnCurve):
        if not isinstance(done.prediction, tuple):
            return None
        return [min(max(value, asked.low), asked.high) for value in done.prediction]
    return _choice(done.prediction, len(asked.choices))


def _choice(number: Any, num_choices: int) -> int | None:
    return number if isinstance(number, int) and number < num_choices else None


def _run(store: RunStore, run_id: str) -> Values | None:
    """Return what is known of a run without reading its events; None where it cannot be seen or read."""
    try:
        run = store.open(run_id)
        return _about(store, run)
    except (OSError, ValueError):
        return None


def _about(store: RunStore, run: RunDirectory) -> Values:
    config, status = run.read_config(), liveness.read_status(run)
    catalogue = store.catalogue_for(run, config)
    strategy = catalogue.strategies.get(config.strategy)
    written = notes.named(run, config.name)
    known: Mapping[str, Any] = facts.facts_of(config, catalogue)
    engine = liveness.engine_to_ask(run)
    return {
        "run_id": run.run_id,
        "path": str(run.path.absolute()),
        "name": written["name"],
        "tags": written["tags"],
        "note": written["note"],
        "state": status.state,
        "error": status.error,
        "labels": [known["model_label"], known["dataset_label"], known["strategy_label"]],
        "num_ranks": config.world_size,
        "num_replicas": config.num_replicas(strategy.ranks_per_replica if strategy else "one"),
        "mistake": config.to_json().get("mistake", "none"),
        "fields": [
            {name: field[name] for name in ("field", "label", "topic", "value", "is_default")}
            for field in summary.fields_of(config, catalogue)
            if field["field"] != "name"
        ],
        "command": commands.train_anew(engine, config, run.path.parent),
        "created_unix_s": run.config.stat().st_mtime,
    }


def _machine() -> Values:
    """Return what the machine is that the page is on."""
    readings = [hardware.read_gpu(handle) for handle in hardware.all_gpus().values() if handle is not None]
    return {
        "cpu": processor.cpu_name(),
        "num_cores": processor.num_cores(),
        "memory_bytes": host.memory_bytes()[1],
        "gpus": [{"name": each.name, "memory_bytes": each.memory_total_bytes} for each in readings],
    }
