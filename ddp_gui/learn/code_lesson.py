"""Lessons in code: the learner completes or corrects a script; checks examine the actions of its run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import HTTPException

from ddp_gui.auth.rights import NotAllowedError
from ddp_gui.background.workers import STARTS, Router
from ddp_gui.learn import code_checks, code_facts, lesson_file
from ddp_gui.learn.code_checks import CHECKS, HINTS, Requirements
from ddp_gui.learn.learn_routes import LessonFiles, Library, tag_run
from ddp_gui.learn.lesson import AnyHeader, Inlines, Tree, parse_inlines
from ddp_gui.operations import operation
from ddp_gui.runs import listing
from ddp_gui.runs.runs import RunStore
from ddp_gui.script import reader
from ddp_gui.script.script_api import RUNS_SCRIPTS, ScriptApi
from trainers.contract import code as code_module
from trainers.contract import events
from trainers.engines import liveness
from trainers.files.typed import Limit
from trainers.watch import spool

# Name of the subfolder in a folder of lessons.
FOLDER = "code"
# Prefix of a lesson in code in lists of all lessons.
PREFIX = "code:"
PARTS = ("Task", "Script", "Solution", "Explain")
NUM_RANKS = 2
ENTRY = "train.py"
MAX_CODE = 100_000
MAX_EPOCHS, MAX_ACCUMULATED, MAX_SAMPLES = 100, 64, 1_000_000
# Time limit for a hang: the learner waits for the result.
HANG_TIMEOUT_S = 4


def _one_of(names: Iterable[str]) -> Limit:
    return Limit(pattern="|".join(names), words=f"one of {', '.join(names)}")


_CheckNames = Annotated[tuple[Annotated[str, _one_of(CHECKS)], ...], Limit(least=1)]


@dataclass(frozen=True, kw_only=True)
class CodeHeader(AnyHeader, Requirements):
    """The header of a lesson in code.

    Attributes:
        checks: names of the checks, in order (`code_checks.CHECKS`).
        hints: by the code of a finding.
    """

    checks: _CheckNames
    hints: dict[Annotated[str, _one_of(HINTS)], tuple[Inlines, ...]] = field(default_factory=dict)
    epochs: Annotated[int, Limit(low=1, high=MAX_EPOCHS)]
    accumulate: Annotated[int, Limit(low=1, high=MAX_ACCUMULATED)] = 1
    num_samples: Annotated[int, Limit(low=0, high=MAX_SAMPLES)] = 0
    saves: Annotated[int, Limit(low=1, high=MAX_EPOCHS)] = 1
    about: _CheckNames = ()


@dataclass(frozen=True, kw_only=True)
class CodeLesson(CodeHeader):
    """A lesson in code, with its hints for each finding, or the default hints.

    Attributes:
        name: identifier in the URL.
        script, solution: Python code.
    """

    name: str
    task: Tree
    script: str
    solution: str
    explain: Tree


def read(path: Path) -> CodeLesson:
    """Read and parse the file of a lesson in code.

    Raises:
        LessonError: naming the line.
        OSError: if it cannot be read.
    """
    return parse(lesson_file.name_of(path), lesson_file.read_text(path))


def parse(name: str, text: str) -> CodeLesson:
    """Parse the text of a lesson in code.

    Raises:
        LessonError: naming the line.
    """
    header, lines, first = lesson_file.split(name, text)
    fields = header.read(CodeHeader)
    parts = lesson_file.parse_parts(lines, first, PARTS)
    for part in ("Script", "Solution"):
        if [block[0] for block in parts[part]] != ["pre"]:
            raise lesson_file.LessonError(f"## {part} must be one block of code", first + 1)
    default_hints = {code: tuple(map(parse_inlines, texts)) for code, texts in HINTS.items()}
    return CodeLesson(
        **{**vars(fields), "hints": default_hints | fields.hints},
        name=name,
        task=parts["Task"],
        script=parts["Script"][0][1] + "\n",
        solution=parts["Solution"][0][1] + "\n",
        explain=parts["Explain"],
    )


class CodeLibrary(LessonFiles[CodeLesson]):
    """The lessons in code below some folders of lessons."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__([folder / FOLDER for folder in folders], read)


def starts_ranks(code: str) -> bool:
    """True if a script starts its ranks itself (`mp.spawn`, `Process`); a single process has no ranks."""
    has_ranks = "spawn" in code or "init_process_group" in code
    return has_ranks and reader.read(code).start == "python"


@dataclass
class CodeLessonApi:
    """Endpoint that runs a learner's code. Results are JSON values."""

    library: CodeLibrary
    scripts: ScriptApi
    store: RunStore

    @operation(method_checks=RUNS_SCRIPTS, workers=STARTS)
    def start_code_lesson(self, lesson: str, code: str) -> dict[str, Any]:
        """Run a learner's code on two CPU ranks, record facts for the lesson's checks, and tag the run."""
        definition = self.library.find(lesson)
        if len(code) > MAX_CODE:
            raise ValueError(f"code has {len(code):,} characters; allowed: at most {MAX_CODE:,}")
        started: dict[str, Any] = self.scripts.start_script(
            {
                "files": {ENTRY: code},
                "entry": ENTRY,
                "ranks": NUM_RANKS,
                "start": "python" if starts_ranks(code) else "torchrun",
                "on_cpu": True,
                "environment": f"{spool.DETAILS}=1",
                "on_hang": "end",
                "hang_timeout_s": HANG_TIMEOUT_S,
                "name": definition.title,
            }
        )
        tag_run(self.store, started["run_id"], lesson)
        return started

    def refusal(self) -> str | None:
        """Return why the current user is not allowed to run scripts, or None."""
        try:
            self.scripts.rules.check(self.store.class_settings)
        except NotAllowedError as error:
            return str(error)
        return None


def result_of(lesson: CodeLesson, store: RunStore, run_id: str) -> dict[str, Any]:
    """Return a run's state, the result of each check, and the hints of the first failed check.

    Raises:
        ValueError: if the run does not exist, or belongs to another lesson.
    """
    run = store.open(run_id)
    if lesson.name not in listing.read_notes(run).tags:
        raise ValueError(f"run {run_id} does not belong to lesson {lesson.name}")
    state = liveness.read_status(run).state
    if state in events.LIVE_STATES:
        return {"run_id": run_id, "state": state, "is_over": False, "is_passed": False, "checks": []}
    results = code_checks.check(code_facts.read(run), lesson, lesson.checks)
    failure = next((result.finding for result in results if result.finding), None)
    return {
        "run_id": run_id,
        "state": state,
        "is_over": True,
        "is_passed": failure is None,
        "checks": [
            {
                "name": result.name,
                "label": result.label,
                "outcome": "failed" if result.finding else "passed" if result.is_reached else "open",
                "words": result.finding.words if result.finding else "",
            }
            for result in results
        ],
        "code": failure.code if failure else None,
        "hints": lesson.hints.get(failure.code, ()) if failure else (),
    }


def code_of(store: RunStore, run_id: str) -> str:
    """Return the code that a learner ran; empty if the run no longer exists."""
    try:
        return code_module.read(store.open(run_id).path)[ENTRY].decode("utf-8", errors="replace")
    except (OSError, ValueError, LookupError):
        return ""


def make_router(api: CodeLessonApi, other_lessons: Library) -> Router:
    """Return the routes below `/live/learn/code`."""
    router = Router(prefix="/live/learn/code")

    @router.get("")
    def lessons() -> dict[str, Any]:
        return api.library.listed()

    @router.get("/lesson")
    def lesson(name: str) -> dict[str, Any]:
        definition = api.library.find(name)
        names = [each.name for each in api.library.read()[0]]
        following = names[names.index(name) + 1 :]
        fields = ("name", "title", "summary", "minutes", "task", "script")
        return {each: getattr(definition, each) for each in fields} | {
            "number": len(other_lessons.read()[0]) + names.index(name) + 1,
            "next": following[0] if following else None,
            "checks": [CHECKS[each][0] for each in definition.checks],
            "refused": api.refusal(),
        }

    @router.get("/solution")
    def solution(name: str) -> dict[str, Any]:
        definition = api.library.find(name)
        return {"solution": definition.solution, "explain": definition.explain}

    @router.get("/result")
    def result(name: str, run: str) -> dict[str, Any]:
        definition = api.library.find(name)
        try:
            return result_of(definition, api.store, run)
        except ValueError as error:
            raise HTTPException(status_code=404, detail=str(error)) from error

    return router
