"""Runs scripts of the lessons in code on two watched ranks, forked from one process that has imported torch.

    python -m tests.code_variants.runner TABLE [LESSON ...] [--subset]

writes a table of all variants; those that it has already are left out. The ranks get the variables that
torchrun sets, and run `trainers.watch` as torchrun would. There is no supervisor: a script without progress
for `HANGS_AFTER_S` counts as a hang.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ddp_gui.learn import code_checks, code_facts
from ddp_gui.learn.code_facts import Facts
from ddp_gui.learn.code_lesson import CodeLesson, CodeLibrary
from tests.code_variants import variants
from trainers.contract.config import parse
from trainers.contract.rundir import RunDirectory, make
from trainers.files.plain_files import ASSETS
from trainers.watch import spool

NUM_RANKS = 2
HANGS_AFTER_S = 8.0
LESSONS = ASSETS / "lessons"


def lessons() -> dict[str, CodeLesson]:
    """Return the lessons in code by name."""
    return {lesson.name: lesson for lesson in CodeLibrary([LESSONS]).read()[0]}


def run_rank(rank: int, folder: Path) -> NoReturn:
    """Run the script of a folder as one rank; never returns."""
    from trainers.watch import __main__ as watch

    os.chdir(folder / "work")
    output = os.open(folder / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", OMP_NUM_THREADS="1",
        WORLD_SIZE=str(NUM_RANKS), LOCAL_WORLD_SIZE=str(NUM_RANKS), MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500", TRAINERS_STORE=str(folder / "store"),
        TORCHELASTIC_ERROR_FILE=str(folder / f"error_{rank}.json"), **{spool.DETAILS: "1"},
    )  # fmt: skip
    sys.argv = ["trainers.watch", "--run-dir", str(folder / "run"), str(folder / "work" / "train.py")]
    try:
        watch.main()
    except BaseException:  # noqa: BLE001 - `main` has ended the process unless something is wrong
        traceback.print_exc()
    os._exit(70)


def preload() -> None:
    """Import what a rank needs, so that forked ones have it: an optimizer loads 800 modules."""
    import torch

    from trainers.watch import __main__, details, recorder  # noqa: F401

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def facts_of(script: str, folder: Path) -> Facts:
    """Run a script in a new folder and return what its ranks did."""
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "train.py").write_text(script, encoding="utf-8")
    config = {"model": "script", "dataset": "script", "script": "train.py", "nproc_per_node": NUM_RANKS}
    run = RunDirectory(folder / "run")
    make(run, parse(config), lambda _made: None)
    children = {}
    for rank in range(NUM_RANKS):
        if (pid := os.fork()) == 0:
            run_rank(rank, folder)
        children[pid] = rank
    state, code, error = _wait(children, folder)
    ranks = code_facts.read_ranks(run, NUM_RANKS)
    return Facts(ranks=ranks, state=state, code=code, error=error)


def _wait(children: dict[int, int], folder: Path) -> tuple[str, str, str]:
    """Wait for the ranks; return state, code and message of the run."""
    failed: list[str] = []
    is_hanging = False
    quiet_since, size = time.monotonic(), -1
    left = dict(children)
    while left:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            rank = left.pop(pid)
            if status:
                failed.append(f"rank {rank} ended with status {status}")
            if failed:  # as torchrun does
                _kill(left)
            continue
        if (now := _num_notes(folder)) > size:
            quiet_since, size = time.monotonic(), now
        if time.monotonic() - quiet_since > HANGS_AFTER_S:
            is_hanging = True
            _kill(left)
        time.sleep(0.05)
    if is_hanging:
        return "failed", "hang", "The run hangs."
    if failed:
        errors = sorted(folder.glob("error_*.json"), key=lambda path: path.stat().st_mtime)
        message = json.loads(errors[0].read_text())["message"]["message"] if errors else failed[0]
        return "failed", "exception", message
    return "finished", "", ""


def _kill(children: dict[int, int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _num_notes(folder: Path) -> int:
    """Return the number of notes of all ranks, without those that a thread writes every second."""
    paths = (folder / "run" / spool.FOLDER).glob("notes_*")
    return sum(b'"kind": "sample"' not in line for path in paths for line in path.read_bytes().splitlines())


def finding_of(lesson: CodeLesson, script: str, folder: Path) -> tuple[str, str]:
    """Run a script; return the code of what is wrong and its words, or "passed"."""
    facts = facts_of(script, folder)
    results = code_checks.check(facts, lesson, lesson.checks)
    found = next((each.finding for each in results if each.finding), None)
    return ("passed", "") if found is None else (found.code, found.words)


def rows_of(lesson: CodeLesson, *, is_subset: bool) -> list[tuple[str, str, str]]:
    """Return title, expected finding and script of a lesson's variants; those for CI, or all."""
    rows = [
        ("the first script", variants.WRONG, lesson.script),
        ("the solution", variants.PASSED, lesson.solution),
    ]
    return rows + [
        (each.name, each.expected, each.script(lesson))
        for each in variants.of(lesson.name)
        if not is_subset or each.name in variants.SUBSET[lesson.name]
    ]


def main() -> None:
    """Append a row for each variant of the named lessons that has none yet to a file."""
    table, *names = (each for each in sys.argv[1:] if each != "--subset")
    known = Path(table).read_text(encoding="utf-8") if Path(table).exists() else ""
    preload()
    # No `TemporaryDirectory`: the forked ranks would remove it when they end.
    folder = Path(tempfile.mkdtemp(prefix="code-variants-"))
    for number, (name, lesson) in enumerate(lessons().items()):
        for title, expected, script in rows_of(lesson, is_subset="--subset" in sys.argv):
            begin = f"{name:18} {title:42}"
            if (names and name not in names) or f"{begin} " in known:
                continue
            code, words = finding_of(lesson, script, folder / f"{number} {title}")
            mark = "ok" if is_right(code, expected) else "NO"
            with Path(table).open("a", encoding="utf-8") as file:
                file.write(f"{mark} {begin} {expected:16} {code:16} {words[:150]}\n")
    shutil.rmtree(folder)


def is_right(code: str, expected: str) -> bool:
    """True if the finding is one of those that are expected."""
    return code in expected.split() or (expected == variants.WRONG and code != variants.PASSED)


if __name__ == "__main__":
    main()
