"""Exports lessons as HTML files with the results of real runs, which it starts on this machine.

    python app.py export-lessons OUT [--only NAME,…] [--lessons DIR] [--runs-dir DIR] [--wheel ADDRESS]

Serves a page on a free port and starts the runs by its endpoints, like the Learn page, including the runs for
each choice of the questions. Writes one file per lesson into OUT, and index.html, which also lists the
lessons in code.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from gradio_client import Client

from ddp_gui.learn.code_lesson import CodeLesson, CodeLibrary
from ddp_gui.learn.learn_routes import Library
from ddp_gui.learn.lesson import Lesson, LessonRun
from ddp_gui.learn.report import lesson_page, measured
from ddp_gui.learn.report.lesson_page import Recorded
from ddp_gui.learn.report.measured import Measured
from ddp_gui.learn.report.request import run_info
from ddp_gui.plan.catalogue import CatalogueSource, default_cache_file
from ddp_gui.runs.runs import RunStore
from trainers.contract import events
from trainers.files import installation
from trainers.files.plain_files import ASSETS, REPOSITORY
from trainers.machine import environment, host

BUILT_IN = ASSETS / "lessons"
# Polling interval, as on the Learn page.
POLL_INTERVAL_S = 0.7
SERVE_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0
RUN_TIMEOUT_S = 600.0
# The wheel is in no public index, so without its address readers must ask for it.
ASK = "Ask the person who gave you this file for it."


class LessonRunner:
    """Starts the runs of lessons on a page.

    Args:
        address: address of the page.
    """

    def __init__(self, address: str) -> None:
        self._page = Client(address, verbose=False)

    def run(self, lesson_run: LessonRun, endpoint: str, *values: Any) -> str:
        """Start a run, send it the lesson's commands, and wait for its end; return its id.

        Args:
            endpoint, values: the endpoint that starts the run and its arguments, such as `start_run` and a
            configuration.

        Raises:
            TimeoutError: if it does not end.
        """
        started_s = time.monotonic()
        run_id = str(self._call(endpoint, *values)["run_id"])
        commands = list(lesson_run.commands)
        while (status := self._call("run_status", run_id))["state"] in events.LIVE_STATES:
            if time.monotonic() - started_s > RUN_TIMEOUT_S:
                raise TimeoutError(f"{run_id} is {status['state']} after {RUN_TIMEOUT_S:.0f} s")
            if commands and status["state"] == "running" and status["step"] >= commands[0].at_step:
                command = commands.pop(0)
                self._call(command.endpoint, run_id, *command.values)
            time.sleep(POLL_INTERVAL_S)
        return run_id

    def _call(self, endpoint: str, *values: Any) -> dict[str, Any]:
        return dict(self._page.predict(*values, api_name=f"/{endpoint}"))


def main(arguments: Sequence[str]) -> int:
    """Export the selected lessons; return the exit code, which is 1 if a file is not a valid lesson."""
    parser = argparse.ArgumentParser(
        prog=f"{installation.command()} export-lessons",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the files")
    parser.add_argument("--only", default="", help="names of lessons, separated by commas")
    parser.add_argument("--lessons", type=Path, metavar="DIR", help="a folder with more lessons")
    parser.add_argument("--runs-dir", type=Path, metavar="DIR", help="keep the runs in this folder")
    parser.add_argument(
        "--wheel", metavar="ADDRESS", help="address from which readers can download the program's wheel"
    )
    options = parser.parse_args(arguments)
    folders = [BUILT_IN, *([options.lessons] if options.lessons else [])]
    lessons, broken = Library(folders).read()
    in_code, broken_in_code = CodeLibrary(folders).read()
    broken += broken_in_code
    for file in broken:
        print(f"{file.file} is not exported: {file.words}", file=sys.stderr)
    names = set(filter(None, options.only.split(",")))
    if unknown := names - {lesson.name for lesson in lessons}:
        parser.error(f"--only names {', '.join(sorted(unknown))}; the lessons are "
                     f"{', '.join(lesson.name for lesson in lessons)}")  # fmt: skip
    numbered = [pair for pair in enumerate(lessons, 1) if not names or pair[1].name in names]
    options.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # Use a private folder, because the page reads plug-ins next to its runs.
        runs_dir = options.runs_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()), "runs")
        extra_options = ("--lessons", str(options.lessons.absolute())) if options.lessons else ()
        runner = LessonRunner(stack.enter_context(served(runs_dir.absolute(), *extra_options)))
        store = RunStore(runs_dir, CatalogueSource(default_cache_file()))
        get_it = f"To install it: pip install {options.wheel}" if options.wheel else ASK
        _write_all(numbered, in_code, runner, store, options.out, get_it)
    return 1 if broken else 0


def _write_all(
    lessons: Sequence[tuple[int, Lesson]],
    in_code: Sequence[CodeLesson],
    runner: LessonRunner,
    store: RunStore,
    out: Path,
    get_it: str,
) -> None:
    files = [f"{number:02d}-{lesson.name}.html" for number, lesson in lessons]
    today = time.localtime()
    cores = host.num_cores()
    product = {
        "product": "Rankscope",
        "get_it": get_it,
        "machine": f"{cores} cores of {host.cpu_name()}",
        "recorded": f"{today.tm_mday} {time.strftime('%B %Y', today)}",
    }
    for index, (number, lesson) in enumerate(lessons):
        print(f"{files[index]}: running …", flush=True)
        recorded = record(number, lesson, runner, store)
        links = [("All lessons", "index.html")]
        if index + 1 < len(lessons):
            links.append((f"Next: {lessons[index + 1][1].title}", files[index + 1]))
        text = "".join(lesson_page.page(recorded, links=links, product=product))
        (out / files[index]).write_text(text, encoding="utf-8")
        print(f"{files[index]}: {len(text.encode()) / 1000:,.0f} kB", flush=True)
    text = "".join(lesson_page.index([lesson for _, lesson in lessons], files, in_code, product))
    (out / "index.html").write_text(text, encoding="utf-8")


def record(number: int, lesson: Lesson, runner: LessonRunner, store: RunStore) -> Recorded:
    """Run a lesson and the attempts of its questions, and read the results.

    An attempt may fail, because the failure can be the answer to its question.

    Raises:
        RuntimeError: if a run does not end as the lesson expects.
    """

    def run(lesson_run: LessonRun, ends: Collection[str], *values: Any) -> Measured:
        run_id = runner.run(lesson_run, "start_lesson_run", lesson.name, *values)
        result = measured.read(run_info(store, store.open(run_id)))
        if result.info["state"] not in ends:
            raise RuntimeError(
                f"{lesson.name}, {lesson_run.name}: {result.info['state']}: {result.info['error'] or ''}"
            )
        return result

    runs = [run(lesson_run, {lesson_run.expect}, index) for index, lesson_run in enumerate(lesson.runs)]
    attempts = {
        index: {
            choice: run(lesson.runs[attempt.run], ("finished", "failed"), attempt.run, index, choice)
            for choice in attempt.choices
        }
        for index, question in enumerate(lesson.questions)
        if (attempt := question.attempt) is not None
    }
    return Recorded(lesson=lesson, number=number, runs=runs, attempts=attempts)


@contextlib.contextmanager
def served(runs_dir: Path, *options: str) -> Iterator[str]:
    """Serve a page on a free port until the block ends; yield its address.

    Raises:
        RuntimeError: if it is not served.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(REPOSITORY / "app.py"), "--no-browser", "--port", str(port)]
    command += ["--runs-dir", str(runs_dir), *options]
    page = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment.for_a_child()
    )
    try:
        deadline = time.monotonic() + SERVE_TIMEOUT_S
        while not _is_open(port):
            if page.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the page is not served: see its output above")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        page.terminate()
        try:
            page.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
