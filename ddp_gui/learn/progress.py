"""Learners' progress: records, their files, the class table, the endpoint and the routes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import HTTPException
from fastapi.responses import Response

from ddp_gui.auth import rights
from ddp_gui.auth.account_file import NAME
from ddp_gui.auth.rights import FOLDER as CLASS_FOLDER
from ddp_gui.background.workers import Router
from ddp_gui.learn.code_lesson import PREFIX, CodeLibrary
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import MAX_CHOICES, MAX_RUNS, NUM_POINTS, ChoiceQuestion, DrawnCurve, Lesson, Tree
from ddp_gui.operations import Rate, operation
from ddp_gui.runs.exports import csv_rows
from trainers.files import private_files, typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.typed import FieldError, Limit

MAX_ROUND = 1_000_000
MAX_QUESTIONS = 12
MAX_ATTEMPTS = 50
MAX_CHOICE_WORDS = 200
# Maximum length of the script of a lesson in code.
MAX_CODE = 50_000

Progress = dict[str, Any]

RunId = Annotated[str, Limit(pattern=r"[A-Za-z0-9_.-]{1,200}", words="the id of a run")]
ChoiceIndex = Annotated[int, Limit(low=0, high=MAX_CHOICES - 1)]
Question = Annotated[str, Limit(pattern=f"({'|'.join(map(str, range(MAX_QUESTIONS)))})", words="a question")]


@dataclass(frozen=True, kw_only=True)
class StartedAttempt:
    """A run that a learner started with one choice of a question's attempt."""

    choice: Annotated[str, Limit(most=MAX_CHOICE_WORDS)]
    runId: RunId  # noqa: N815 - the browser's name


@dataclass(frozen=True, kw_only=True)
class Record:
    """A learner's progress on a lesson; the browser uses the same field names."""

    round: Annotated[int, Limit(low=0, high=MAX_ROUND)] = 0
    poll: Annotated[str, Limit(pattern="[a-z0-9]{1,20}", words="the id of a poll")] | None = None
    prediction: ChoiceIndex | Annotated[list[float], Limit(least=NUM_POINTS, most=NUM_POINTS)] | None = None
    isLocked: bool = False  # noqa: N815
    isStarted: bool = False  # noqa: N815
    runs: Annotated[list[RunId | None], Limit(most=MAX_RUNS)] = field(default_factory=list)
    attempts: dict[Question, Annotated[list[StartedAttempt], Limit(most=MAX_ATTEMPTS)]] = field(
        default_factory=dict
    )
    answers: dict[Question, ChoiceIndex] = field(default_factory=dict)
    isDone: bool = False  # noqa: N815
    code: Annotated[str, Limit(most=MAX_CODE)] | None = None
    numTries: Annotated[int, Limit(low=0, high=MAX_ROUND)] = 0  # noqa: N815
    isSolutionShown: bool = False  # noqa: N815

    def __post_init__(self) -> None:
        if self.isLocked and self.prediction is None:
            raise ValueError("isLocked needs a prediction")


def empty_record() -> Progress:
    """Return the progress of a learner who has not started."""
    return asdict(Record())


def parse_record(raw: Any) -> Progress:
    """Validate a learner's progress; missing fields get their initial values.

    Fields of newer versions of the page stay only in the browser.

    Raises:
        ValueError: naming the field.
    """
    try:
        return asdict(typed.read(Record, raw, ignores_unknown=True))
    except FieldError as error:
        raise ValueError(f"progress: {error}") from error


def merge_records(stored: Progress, reported: Progress) -> Progress:
    """Merge the stored progress with a page's report. The newer one has priority, but no started run is lost.

    Restarting a lesson begins a new round; reports about an earlier round are outdated.
    """
    if reported["round"] != stored["round"]:
        return reported if reported["round"] > stored["round"] else stored
    merged = dict(reported)
    if stored["isLocked"]:
        merged |= {"isLocked": True, "prediction": stored["prediction"], "poll": stored["poll"]}
    pairs = list(itertools.zip_longest(reported["runs"], stored["runs"]))
    merged["runs"] = [new if new is not None else old for new, old in pairs]
    # A page that does not know a run cannot have stopped the lesson.
    knows_less = any(new is None and old is not None for new, old in pairs)
    merged["isStarted"] = reported["isStarted"] or (stored["isStarted"] and knows_less)
    merged["isDone"] = stored["isDone"] or reported["isDone"]
    merged["attempts"] = {
        number: _merge_attempts(stored["attempts"].get(number, []), reported["attempts"].get(number, []))
        for number in {**stored["attempts"], **reported["attempts"]}
    }
    merged["answers"] = {**reported["answers"], **stored["answers"]}
    return merged


def _merge_attempts(stored: list[Any], reported: list[Any]) -> list[Any]:
    ids = {attempt["runId"] for attempt in reported}
    return [*(attempt for attempt in stored if attempt["runId"] not in ids), *reported][-MAX_ATTEMPTS:]


FOLDER = "progress"
# Maximum number of lessons stored per learner; the least recently changed one is dropped first.
MAX_LESSONS = 300
# Maximum number of reports per minute; while a curve is drawn, the page sends one per second.
PROGRESS_RATE = Rate("a change of your progress", 120)
# Fields with the time at which a flag was first set, by the server's clock, for the teacher's table.
TIMES = {"isLocked": "predicted_unix_s", "isStarted": "started_unix_s", "isDone": "done_unix_s"}


class ProgressFiles:
    """The progress files of all learners; thread-safe."""

    def __init__(self, runs_dir: Path) -> None:
        self._folder = runs_dir / CLASS_FOLDER / FOLDER
        self._lock = threading.Lock()

    def of_current_user(self) -> dict[str, Progress]:
        """Return the current user's progress by lesson; empty without an account."""
        name = rights.current_user().name
        lessons = self._read(name)["lessons"] if name else {}
        return {lesson: entry["progress"] for lesson, entry in lessons.items()}

    def keep(self, lesson: str, reported: Any) -> Progress:
        """Merge a page's report into the current user's progress on a lesson; return the result.

        Raises:
            ValueError: if there is no account, the rate limit is exceeded, or the report is not valid.
            OSError: if it cannot be written.
        """
        name = rights.current_user().name
        if not name:
            raise ValueError("without logins, progress is stored in the browser")
        record = parse_record(reported)
        PROGRESS_RATE.count(self)
        with self._lock:
            content = self._read(name)
            lessons = content["lessons"]
            stored = lessons.pop(lesson, {"progress": empty_record(), "times": {}})
            merged = merge_records(stored["progress"], record)
            lessons[lesson] = {"progress": merged, "times": _times(stored, merged)}
            for oldest in list(lessons)[: max(0, len(lessons) - MAX_LESSONS)]:
                del lessons[oldest]
            private_files.make_folder(self._folder.parent)
            private_files.make_folder(self._folder)
            write_json_atomically(self._path(name), content, mode=0o600)
        return merged

    def everybody(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each learner's name and stored progress by lesson."""
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []:
            if NAME.fullmatch(path.stem):
                yield path.stem, self._read(path.stem)["lessons"]

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), "names of accounts are checked earlier"
        return self._folder / f"{name}.json"

    def _read(self, name: str) -> dict[str, Any]:
        """Return a file's content; invalid lessons are skipped, the others are kept."""
        try:
            raw = read_json(self._path(name), must_be_ours=True)
        except FileNotFoundError:
            raw = {}
        except ValueError as error:
            print(f"The progress of {name} cannot be read: {error}.", flush=True)
            raw = {}
        lessons: dict[str, Any] = {}
        stored = raw.get("lessons") if isinstance(raw, dict) else None
        for lesson, entry in stored.items() if isinstance(stored, dict) else ():
            try:
                times = {key: float(entry["times"][key]) for key in TIMES.values() if key in entry["times"]}
                lessons[lesson] = {"progress": parse_record(entry["progress"]), "times": times}
            except (ValueError, LookupError, TypeError):
                continue
        return {"lessons": lessons}


def _times(stored: dict[str, Any], merged: Progress) -> dict[str, float]:
    before = stored["times"] if merged["round"] == stored["progress"]["round"] else {}
    now = time.time()
    return {key: before.get(key, now) for flag, key in TIMES.items() if merged[flag]}


COLUMNS = (
    "person",
    "lesson",
    "prediction",
    "prediction_is_right",
    "predicted_at",
    "started_at",
    "done_at",
    "num_answered",
    "num_right",
    "num_questions",
    "answers",
    "in_poll",
    "runs",
    "num_tries",
)


def class_csv(people: Iterable[tuple[str, Mapping[str, Any]]], lessons: Sequence[Lesson]) -> bytes:
    """Return a CSV row for each learner and each lesson with a locked prediction or a run of the learner's
    code. No cell acts as a formula.
    """
    by_name = {lesson.name: lesson for lesson in lessons}
    table: list[Sequence[Any]] = [COLUMNS]
    for person, entries in people:
        for name, entry in sorted(entries.items()):
            if entry["progress"]["isLocked"] or entry["progress"]["numTries"]:
                row = _row(entry["progress"], entry["times"], by_name.get(name))
                table.append((person, name, *row))
    return csv_rows(table)


def _row(progress: Mapping[str, Any], times: Mapping[str, float], lesson: Lesson | None) -> list[Any]:
    questions = lesson.questions if lesson is not None else ()
    answers = {int(number): index for number, index in progress["answers"].items()}
    correct = [number for number, question in enumerate(questions) if answers.get(number) == question.right]
    answer_texts = [
        f"{number + 1}: {_choice_text(questions[number], index) if number < len(questions) else index + 1}"
        for number, index in sorted(answers.items())
    ]
    predicted, is_right = _prediction_text(progress["prediction"], lesson)
    return [
        predicted,
        is_right,
        *(_format_time(times.get(key)) for key in ("predicted_unix_s", "started_unix_s", "done_unix_s")),
        len(answers),
        len(correct) if lesson is not None else None,
        len(questions) if lesson is not None else None,
        "; ".join(answer_texts),
        progress["poll"],
        " ".join(run_id for run_id in progress["runs"] if run_id),
        progress["numTries"] or None,
    ]


def _prediction_text(value: Any, lesson: Lesson | None) -> tuple[str | None, str | None]:
    """Return a prediction as text, and whether it was correct; None for a curve and for a lesson in code."""
    if value is None:
        return None, None
    if isinstance(value, list):
        return " ".join(f"{number:.4g}" for number in value), None
    if lesson is None or isinstance(lesson.prediction, DrawnCurve):
        return str(value), None
    return _choice_text(lesson.prediction, value), "yes" if value == lesson.prediction.right else "no"


def _choice_text(question: ChoiceQuestion, index: Any) -> str:
    return (
        plain_text(question.choices[index]) if 0 <= index < len(question.choices) else f"choice {index + 1}"
    )


def plain_text(tree: Tree) -> str:
    """Return the text of a paragraph's content, without markup."""
    return "".join(part if isinstance(part, str) else _inline_text(part) for part in tree)


def _inline_text(part: Sequence[Any]) -> str:
    last = part[-1]
    return last if isinstance(last, str) else plain_text(last)


def _format_time(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass
class ProgressApi:
    """Endpoint for learners' progress. Results are JSON values."""

    _files: ProgressFiles
    _library: Library
    _in_code: CodeLibrary

    @operation(method_checks="who has an account", rate=PROGRESS_RATE, counts_itself=True)
    def keep_progress(self, lesson: str, progress: dict[str, Any]) -> dict[str, Any]:
        """Merge the current user's progress on a lesson with the stored progress; return the result."""
        # The prefix allows a lesson in code to have the same name as another lesson.
        if lesson.startswith(PREFIX):
            self._in_code.find(lesson.removeprefix(PREFIX))
        else:
            self._library.find(lesson)
        return self._files.keep(lesson, progress)


def make_router(files: ProgressFiles, library: Library, *, has_login: bool) -> Router:
    """Return the routes below `/live/learn`."""
    router = Router(prefix="/live/learn")

    @router.get("/progress")
    def progress() -> dict[str, Any]:
        return {"progress": files.of_current_user()}

    @router.get("/class.csv")
    def table() -> Response:
        rights.require_teacher("see the progress of students")
        if not has_login:
            raise HTTPException(
                status_code=404, detail="this page has no logins, so it does not know the progress of users"
            )
        csv = class_csv(files.everybody(), library.read()[0])
        headers = {"Content-Disposition": 'attachment; filename="lessons.csv"'}
        return Response(csv, media_type="text/csv; charset=utf-8", headers=headers)

    return router
