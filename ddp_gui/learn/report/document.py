"""Puts a report together: one HTML file that asks nothing of any network, and in which no text can act."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from ddp_gui.background.low_priority import printed_by
from ddp_gui.learn.report import lesson_part, measured, number_words, pictures, run_part
from ddp_gui.learn.report.markup import Html, name_of, tag
from ddp_gui.learn.report.measured import Measured
from ddp_gui.learn.report.pictures import Shown
from trainers.files.paths import ASSETS, REPOSITORY
from trainers.machine import environment

STYLE = ASSETS / "css" / "learn" / "report.css"
SCRIPTS = ASSETS / "js"
# In the order in which one uses the other.
SCRIPT_NAMES = ("shared/format", *(f"learn/report/file/{name}" for name in ("axis", "points", "zoom")))
_BETWEEN_MODULES = re.compile(r"^(?:import .*;$|export )", re.MULTILINE)
MAX_BYTES = 3_000_000
GIT_TIMEOUT_S = 5.0
# All points of all curves: ten bytes each, which leaves more than half of the file to the words.
MAX_POINTS_IN_ALL = 110_000
MAX_POINTS, FEWEST_POINTS = 1_600, 60
_CURVES_OF_A_RUN = 9
_MAX_OTHERS_IN_A_CHART = 12
_COMPARED = ("loss", "validation", "num_steps", "global_batch", "throughput", "took")


def beside(gathered: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the file, made by a process that nobody's click waits for."""
    return printed_by("ddp_gui.learn.report.document", gathered)


def made(gathered: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the file from what `gather` gave; the events are read here."""
    runs, unread = _read(gathered["runs"])
    lessons = [lesson | {"key": number} for number, lesson in enumerate(gathered["lessons"], 1)]
    max_points = min(
        MAX_POINTS, max(FEWEST_POINTS, MAX_POINTS_IN_ALL // max(1, _CURVES_OF_A_RUN * len(runs)))
    )
    yield _head(gathered["name"], "of-lessons" if lessons else "of-runs").encode()
    yield _title(gathered, lessons, runs).encode()
    for lesson in lessons:
        yield lesson_part.drawn(lesson, runs, max_points).encode()
    others = [runs[run_id] for run_id in gathered["others"] if run_id in runs]
    if others:
        yield _others(others, max_points).encode()
    yield tag("h2", "The runs", id="runs").encode()
    yield tag("div", [run_part.drawn(run) for run in runs.values()], class_="runs").encode()
    if unread:
        yield tag("p", "No longer there, or not readable: ", ", ".join(unread), ".", class_="soft").encode()
    yield _hashes(list(runs.values())).encode()
    yield _made_with(gathered).encode()
    yield f"</main><script type=module>{_script()}</script></body></html>\n".encode()


def _read(about: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Measured], list[str]]:
    found = dict(zip(about, measured.read_all(list(about.values())), strict=True))
    runs = {run_id: run for run_id, run in found.items() if run is not None}
    return runs, [run_id for run_id in found if run_id not in runs]


def _head(name: str, kind: str) -> str:
    style, script = STYLE.read_text(encoding="utf-8"), _script()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Lab report · {name}" if name else "Lab report"),
        tag("style", Html(style)),
    )
    return f'<!doctype html>\n<html lang="en">{head}<body><main class="{kind}">'


def _title(
    gathered: Mapping[str, Any], lessons: Sequence[Mapping[str, Any]], runs: Mapping[str, Measured]
) -> Html:
    name, when = gathered["name"], number_words.moment(gathered["made_unix_s"])
    num_runs = len(runs)
    what = [f"{len(lessons)} lesson{'' if len(lessons) == 1 else 's'}"] if lessons else []
    what.append(f"{num_runs} run{'' if num_runs == 1 else 's'}")
    rows = [
        tag(
            "li",
            tag("a", name_of(lesson["title"]), href=f"#{lesson_part.lesson_id(lesson)}"),
            " ",
            tag("span", lesson_part.outcome_words(lesson, runs), class_="soft"),
            value=lesson["number"],
        )
        for lesson in lessons
    ]
    return tag(
        "header",
        tag("h1", "Lab report"),
        tag("p", name_of(name), class_="by") if name else None,
        tag("p", f"{when} · {' and '.join(what)}", class_="soft"),
        _total(gathered, lessons, runs) if lessons else None,
        tag("ol", rows, class_="contents") if rows else None,
        class_="title",
    )


def _total(
    gathered: Mapping[str, Any], lessons: Sequence[Mapping[str, Any]], runs: Mapping[str, Measured]
) -> Html:
    """Return the learner's total over all lessons of the report."""
    questions = [question for lesson in lessons for question in lesson["questions"]]
    num_right = sum(lesson_part.num_right_answers(lesson, runs) for lesson in lessons)
    num_done = sum(lesson_part.is_done(lesson, runs) for lesson in lessons)
    num_in_all = max(gathered["num_lessons"], len(lessons))
    words = f"{num_done} of {num_in_all} lessons done, {num_right} of {len(questions)} questions right."
    if num_done == num_in_all:
        words = f"All {num_done} lessons are done. {num_right} of {len(questions)} questions right."
    return tag("p", words, class_="total")


def _others(runs: Sequence[Measured], max_points: int) -> Html:
    """Return charts of runs that belong to no lesson, all in one as far as they can be told apart."""
    shown = [Shown(name=run.about["name"], index=index, run=run) for index, run in enumerate(runs)]
    parts: list[Html | None] = []
    for first in range(0, len(shown), _MAX_OTHERS_IN_A_CHART):
        part = shown[first : first + _MAX_OTHERS_IN_A_CHART]
        parts.append(pictures.usual(part, max_points))
        parts.append(pictures.table(part, _COMPARED))
    return tag("section", tag("h2", "Runs beside each other" if len(runs) > 1 else "Curves"), parts)


def _hashes(runs: Sequence[Measured]) -> Html:
    lines = [run_part.hash_line(run, run.hashed) for run in runs if run.hashed is not None]
    live = [run.about["run_id"] for run in runs if run.is_live]
    words = (
        "All that is said of a run here was read from its events.jsonl. Whoever has the folders of the runs "
        "can check that these are the events: save the lines below as hashes.txt beside the folders, and run "
    )
    went_on = f" Of a run that went on ({', '.join(live)}) the file has grown since." if live else ""
    return tag(
        "section",
        tag("h2", "Where the numbers come from"),
        tag("p", words, tag("code", "sha256sum --check hashes.txt"), f".{went_on}"),
        tag("pre", tag("code", "\n".join(lines))),
        class_="hashes",
    )


def _made_with(gathered: Mapping[str, Any]) -> Html:
    machine = gathered["machine"]
    gpus = [
        f"{gpu['name'] or 'GPU'}, {number_words.size(gpu['memory_bytes'])}" for gpu in machine["gpus"]
    ] or ["none"]
    facts = [
        ("Processor", f"{machine['cpu']}, {machine['num_cores']} cores for runs"),
        ("Memory", number_words.size(machine["memory_bytes"])),
        ("GPUs", "; ".join(gpus)),
        ("This program", _program_version()),
        *((each["name"], each["version"] or "not installed") for each in gathered["versions"]),
    ]
    rows = [tag("div", tag("dt", title), tag("dd", words)) for title, words in facts]
    return tag(
        "section",
        tag("h2", "Machine and versions"),
        tag(
            "p",
            "Of the machine that the page is on, when this report was made: runs do not record versions. "
            "What each run trained on is said with the run, as its events have it.",
            class_="soft",
        ),
        tag("dl", rows, class_="facts"),
    )


def _program_version() -> str:
    """Return the commit of this checkout, which is all that a version can say of it."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(
            command,
            env=environment.for_a_child(),
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown: it is no checkout of git"
    return f"commit {answer.stdout.strip()}".replace("-dirty", ", changed since")


def _script() -> str:
    """Return the modules as one: a file of its own has nothing to import from."""
    modules = [(SCRIPTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPT_NAMES]
    return "".join(_BETWEEN_MODULES.sub("", module) for module in modules)


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


if __name__ == "__main__":
    for piece in made(orjson.loads(sys.stdin.buffer.read())):
        sys.stdout.buffer.write(piece)
