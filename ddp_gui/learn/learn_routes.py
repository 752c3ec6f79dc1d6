"""The lesson library, its endpoints and its routes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import HTTPException, Query

from ddp_gui.background.workers import CLICKS, Router
from ddp_gui.learn import lesson_file, measures
from ddp_gui.learn import outcome as outcome_module
from ddp_gui.learn.lesson import MAX_RUNS, Lesson
from ddp_gui.learn.lesson_file import LessonError
from ddp_gui.learn.measures import RunNumbers
from ddp_gui.learn.outcome import fit
from ddp_gui.operations import operation
from ddp_gui.runs import listing
from ddp_gui.runs.runs import RunStore, status_values
from ddp_gui.train.api import Api
from trainers.files.json_files import read_lines
from trainers.files.plain_files import open_plain
from trainers.machine.os_errors import explain

MAX_FILES = 200
# Inode, modification time and size. A file is parsed again only if one of these differs.
FileVersion = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A file that is not a valid lesson, and the reason."""

    file: str
    words: str


class NoSuchLessonError(ValueError):
    """The lesson does not exist."""

    http_status = 404


class Named(Protocol):
    """A lesson of either kind."""

    @property
    def name(self) -> str:
        """The lesson's name in URLs."""


Made = TypeVar("Made", bound=Named)


class LessonFiles(Generic[Made]):
    """The lessons of some folders, in the order of their file names; thread-safe.

    Args:
        folders: of two lessons with the same name, the lesson in the later folder is used.
        read_file: returns the lesson of a file; raises `LessonError`.
    """

    def __init__(self, folders: Sequence[Path], read_file: Callable[[Path], Made]) -> None:
        self._folders = tuple(folders)
        self._read_file = read_file
        self._cache: dict[Path, tuple[FileVersion, Made | Broken]] = {}
        self._lock = threading.Lock()

    def read(self) -> tuple[list[Made], list[Broken]]:
        """Return all lessons and all invalid files. Only changed files are parsed again."""
        with self._lock:
            lessons, broken = dict[str, Made](), list[Broken]()
            for folder in self._folders:
                try:
                    paths = sorted(folder.glob("*.md"))[:MAX_FILES]
                except OSError as error:
                    broken.append(Broken(file=folder.name, words=explain(error)))
                    continue
                for path in paths:
                    parsed = self._read_cached(path)
                    if isinstance(parsed, Broken):
                        broken.append(parsed)
                    else:
                        lessons[parsed.name] = parsed
            return list(lessons.values()), broken

    def listed(self) -> dict[str, Any]:
        """Return a summary of each lesson, and the invalid files, as JSON values."""
        lessons, broken = self.read()
        fields = ("name", "title", "summary", "minutes")
        return {
            "lessons": [{name: getattr(lesson, name) for name in fields} for lesson in lessons],
            "broken": [asdict(file) for file in broken],
        }

    def find(self, name: str) -> Made:
        """Return the lesson with this name.

        Raises:
            NoSuchLessonError: if it does not exist.
        """
        for lesson in self.read()[0]:
            if lesson.name == name:
                return lesson
        raise NoSuchLessonError(f"there is no lesson {name!r}")

    def _read_cached(self, path: Path) -> Made | Broken:
        try:
            stat = path.stat()
            version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            cached = self._cache.get(path)
            if cached is not None and cached[0] == version:
                return cached[1]
            parsed: Made | Broken = self._read_file(path)
        except LessonError as error:
            parsed = Broken(file=path.name, words=str(error))
        except OSError as error:
            return Broken(file=path.name, words=explain(error))
        self._cache[path] = (version, parsed)
        return parsed


class Library(LessonFiles[Lesson]):
    """The lessons with a prediction."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(folders, lesson_file.read)


TAG = "lesson"


@dataclass
class LearnApi:
    """Endpoint that starts a lesson's runs. Results are JSON values."""

    _library: Library
    _api: Api
    _store: RunStore

    @operation()
    async def start_lesson_run(
        self, lesson: str, run: int, question: int | None = None, choice: str | None = None
    ) -> dict[str, Any]:
        """Start or queue one of a lesson's runs (counted from 0) and tag it with the lesson's name.

        With a `question` (from 0), start that question's attempt with the given `choice`.
        """
        config = await CLICKS.run(self._config, lesson, run, question, choice)
        started: dict[str, Any] = await self._api.start_run(config)
        await CLICKS.run(tag_run, self._store, started["run_id"], lesson)
        return started

    async def start(self, lesson: str, run: int) -> str:
        """Start one of a lesson's runs, for a poll, and return its id."""
        return str((await self.start_lesson_run(lesson, run))["run_id"])

    def tend(self, lesson: str, run: int, run_id: str) -> None:
        """Send a run the lesson's next command once the run has reached the command's step.

        Raises:
            ValueError: if the run has ended or belongs to another user.
        """
        commands = self._library.find(lesson).runs[run].commands
        view = self._store.view(run_id)
        sent = 0
        if view.run.commands.exists():
            with open_plain(view.run.commands) as file:
                sent = read_lines(file, 0)[0].count(b"\n")
        if sent >= len(commands):
            return
        view.catch_up()
        status = status_values(view)
        if status["state"] == "running" and status["step"] >= commands[sent].at_step:
            self._api.send(run_id, commands[sent].name, commands[sent].values)

    def _config(self, name: str, run: int, question: int | None, choice: str | None) -> dict[str, Any]:
        lesson = self._library.find(name)
        fitted = fit(lesson, self._api.plan)
        if question is None:
            lesson_run = _nth(lesson.runs, "run", run)
            return {**fitted.of(lesson_run.config), "name": f"{lesson.title}: {lesson_run.name}"}
        attempt = _nth(lesson.questions, "question", question).attempt
        if attempt is None or choice not in attempt.choices:
            allowed = ", ".join(attempt.choices) if attempt else "none, because this question has no attempt"
            raise ValueError(f"choice is {choice!r}; allowed: {allowed}")
        base = lesson.runs[attempt.run]
        return {**fitted.of({**base.config, **attempt.choices[choice]}), "name": f"{lesson.title}: {choice}"}


def tag_run(store: RunStore, run_id: str, lesson: str) -> None:
    """Tag a run as one of a lesson."""
    run = store.open(run_id)
    listing.write_notes(run, listing.change_notes(listing.read_notes(run), tags=(TAG, lesson)))
    store.read_again([run_id])


def _nth(items: tuple[Any, ...], name: str, number: int) -> Any:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(items):
        raise ValueError(f"{name} is {number!r}; allowed: a whole number from 0 to {len(items) - 1}")
    return items[number]


MAX_ATTEMPTS = 60
RunIds = Annotated[tuple[str, ...], Query(max_length=MAX_RUNS)]
# Each item is `question:choice:run`; question and choice count from 0. The handler checks the format in a
# worker thread, because FastAPI would report thousands of invalid items on the event loop.
AttemptIds = Annotated[tuple[str, ...], Query(max_length=MAX_ATTEMPTS)]
_ATTEMPT = re.compile(r"\d{1,3}:\d{1,3}:.{1,290}")


def make_router(library: Library, api: Api, store: RunStore) -> Router:
    """Return the routes below `/live/learn`."""
    router = Router(prefix="/live/learn")

    @router.get("")
    def lessons() -> dict[str, Any]:
        return library.listed()

    @router.get("/outcome")
    def outcome(name: str, run: RunIds = (), attempt: AttemptIds = ()) -> dict[str, Any]:
        definition = library.find(name)
        if not all(map(_ATTEMPT.fullmatch, attempt)):
            raise HTTPException(status_code=422, detail="attempt must be question:choice:run")
        return outcome_of(definition, store, run, [tuple(text.split(":", 2)) for text in attempt])

    @router.get("/lesson")
    def lesson(name: str) -> dict[str, Any]:
        definition = library.find(name)
        names = [entry.name for entry in library.read()[0]]
        following = names[names.index(name) + 1 :] if name in names else []
        fitted = fit(definition, api.plan)
        return asdict(definition) | {
            "number": names.index(name) + 1,
            "next": following[0] if following else None,
            "prediction": definition.prediction_values(),
            "obstacles": fitted.obstacles,
            "way": fitted.way,
        }

    return router


def outcome_of(
    lesson: Lesson, store: RunStore, run_ids: Sequence[str], attempts: Sequence[tuple[str, ...]] = ()
) -> dict[str, Any]:
    """Return the measured outcome of a lesson, from ended runs that the current user can see.

    Args:
        run_ids: in the order of the lesson's runs.
        attempts: question, choice (both from 0) and run id of each attempt, oldest first.
    """
    numbers_by_run: dict[measures.RunName, RunNumbers] = {
        number: numbers
        for number, (run, run_id) in enumerate(zip(lesson.runs, run_ids, strict=False))
        if (numbers := outcome_module.numbers_of(store, run_id, run.name)) is not None
    }
    numbers_by_attempt: dict[int, dict[measures.RunName, RunNumbers]] = {}
    for question, choice, run_id in attempts:
        question_attempt = (
            lesson.questions[int(question)].attempt if int(question) < len(lesson.questions) else None
        )
        names = list(question_attempt.choices) if question_attempt is not None else []
        if (
            int(choice) < len(names)
            and (numbers := outcome_module.numbers_of(store, run_id, names[int(choice)])) is not None
        ):
            numbers_by_attempt.setdefault(int(question), {})[names[int(choice)]] = numbers
    return outcome_module.of_lesson(lesson, numbers_by_run, numbers_by_attempt)
