"""Inspect each malicious file and path as the page does, and print the response, time and memory.

    python -m tests.hostile_data SCRATCH_DIR [--only zip,image,CSV,text,Parquet,path,tar] [--name WORDS]

Each is created in SCRATCH_DIR (up to 3 GB at a time), inspected by a process forked from the page's template,
and deleted. The exit code is 1 if any response is wrong or exceeds the bounds below.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ddp_gui.background import trainer_process
from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.background.trainer_process import InspectionError
from tests.hostile_data import archives, images, paths, tables
from tests.hostile_data.attack import Attack
from trainers.contract.config import parse
from trainers.data.own.cache import CACHE_VARIABLE

MAX_S = 300.0
# Python with torch needs some 300 MB; the limit is for the rest.
MAX_BYTES = 4.5 * 2**30
MAX_WORDS = 110
POLL_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one attack; `words` is the first message."""

    is_right: bool
    elapsed_s: float
    peak_bytes: int
    words: str


def main() -> None:
    """Run all attacks and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--only", default="", help="kinds, with commas between")
    parser.add_argument("--name", default="", help="only those with these words in their name")
    asked = parser.parse_args()
    kinds = tuple(filter(None, asked.only.split(",")))
    everything = [*archives.attacks(), *images.attacks(), *tables.attacks(), *paths.attacks()]
    chosen = [a for a in everything if (not kinds or a.name.startswith(kinds)) and asked.name in a.name]
    print("| attack | ended | seconds | peak MB | said |\n|---|---|---|---|---|")
    wrong, template = 0, TorchTemplate()
    for attack in chosen:
        outcome = _try(attack, asked.scratch, template)
        wrong += not outcome.is_right
        ended = ("refused" if attack.is_refused else "read") if outcome.is_right else "NOT AS IT SHOULD"
        figures = f"{outcome.elapsed_s:.1f} | {outcome.peak_bytes / 1e6:,.0f}"
        print(f"| {attack.name} | {ended} | {figures} | {outcome.words} |", flush=True)
    print(f"\n{len(chosen)} attacks, {wrong} not answered as they should be")
    sys.exit(1 if wrong else 0)


def _try(attack: Attack, scratch: Path, template: TorchTemplate) -> Outcome:
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        (folder / "data").mkdir()
        path = attack.make(folder / "data")
        return _look(attack, path, folder, template)
    finally:
        # shutil.rmtree cannot delete folders this deep.
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _look(attack: Attack, path: Path, folder: Path, template: TorchTemplate) -> Outcome:
    os.environ[CACHE_VARIABLE] = str(folder / "cache")
    config = parse({"dataset": "own", "data_path": str(path)})
    started = time.monotonic()
    looking = ThreadPoolExecutor(1).submit(trainer_process.inspect_data, config, template)
    peak_bytes = 0
    while not looking.done():
        children = psutil.Process().children(recursive=True)
        peak_bytes = max([peak_bytes, *(_most_held(child.pid) for child in children)])
        time.sleep(POLL_EVERY_S)
    elapsed_s = time.monotonic() - started
    try:
        answer = looking.result()
    except InspectionError as error:
        return Outcome(is_right=False, elapsed_s=elapsed_s, peak_bytes=peak_bytes, words=_cell(str(error)))
    is_bounded = elapsed_s < MAX_S and peak_bytes < MAX_BYTES
    is_right = is_bounded and answer["ok"] is not attack.is_refused
    return Outcome(is_right=is_right, elapsed_s=elapsed_s, peak_bytes=peak_bytes, words=_said(answer))


def _most_held(pid: int) -> int:
    """Return the peak memory of a process as reported by the system, or 0 if it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return max((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), default=0)


def _said(answer: dict[str, Any]) -> str:
    if answer["problems"]:
        first = answer["problems"][0]
        where = first["where"]
        name = Path(where).name if where.startswith("/") else where
        return _cell(f"{name}: {first['message']}")
    return _cell(str((answer["dataset"] or {}).get("description", "")))


def _cell(text: str) -> str:
    short = text.replace("|", "¦").replace("\n", " ")
    return short if len(short) <= MAX_WORDS else short[: MAX_WORDS - 1] + "…"


if __name__ == "__main__":
    main()
