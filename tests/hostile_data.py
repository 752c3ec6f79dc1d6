"""Inspect malicious files that are large, as the page does, and print the response, time and memory.

    python -m tests.hostile_data SCRATCH_DIR [--name WORDS]

Each is created in SCRATCH_DIR (up to 3 GB at a time), inspected by a process forked from the page's template,
and deleted. The exit code is 1 if any response is wrong or exceeds the bounds below. The small ones are in
`tests/unit/trainers/data/own`.
"""

from __future__ import annotations

import argparse
import io
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from ddp_gui.background import trainer_process
from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.background.trainer_process import InspectionError
from trainers.contract.config import parse
from trainers.data.own.cache import CACHE_VARIABLE

MAX_S = 300.0
# Python with torch needs some 300 MB; the limit is for the rest.
MAX_BYTES = 4.5 * 2**30
MAX_WORDS = 110
POLL_EVERY_S = 0.02
MEGA, GIGA = 10**6, 10**9
ROWS = "".join(f"{n}.5,{'xy'[n % 2]}\n" for n in range(100))

# Creates a file or a folder in an empty folder; returns its path.
Maker = Callable[[Path], Path]
Parts = Callable[[], Iterable[str]]


# --- archives ---------------------------------------------------------------------------------------------


def _zip(folder: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return folder / "data.zip"


def _zeros(folder: Path) -> Path:
    return _zip(folder, [("a/0.png", bytes(GIGA)), ("b/1.png", b"x")])


def _false_size(folder: Path) -> Path:
    path = _zeros(folder)
    path.write_bytes(path.read_bytes().replace(struct.pack("<L", GIGA), struct.pack("<L", 100)))
    return path


def _overlapping(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/0.png", bytes(10 * MEGA))
        first = archive.infolist()[0]
        for number in range(1, 50_000):
            again = zipfile.ZipInfo(f"{'ab'[number % 2]}/{number}.png")
            again.header_offset, again.CRC, again.compress_type = first.header_offset, first.CRC, 8
            again.file_size, again.compress_size = first.file_size, first.compress_size
            archive.filelist.append(again)
    return folder / "data.zip"


def _nested(folder: Path) -> Path:
    content = bytes(10 * MEGA)
    for depth in range(5):
        names = (f"{depth}-{number}.zip" if depth else f"{number}.png" for number in range(16))
        content = _zip(folder, ((name, content) for name in names)).read_bytes()
    return folder / "data.zip"


def _empty_files(folder: Path) -> Path:
    return _zip(folder, ((f"{'ab'[number % 2]}/{number:07}.png", b"") for number in range(MEGA)))


def _deep_names(folder: Path) -> Path:
    return _zip(folder, (("d/" * 32_000 + f"{number}.png", b"x") for number in range(1_000)))


def _sheet(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "d.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
            for _ in range(1000):
                sheet.write(b" " * MEGA)
    return folder / "d.xlsx"


# --- images -----------------------------------------------------------------------------------------------


def _among(content: Callable[[], bytes], count: int = 1) -> Maker:
    """Put an image among valid ones in class folders."""

    def make(folder: Path) -> Path:
        raw = content()
        for name in ("a", "b"):
            (folder / name).mkdir()
            for number in range(10):
                Image.new("RGB", (16, 16), (9 * number, 9, 9)).save(folder / name / f"{number}.png")
        for number in range(count):
            (folder / "a" / f"odd-{number}.jpg").write_bytes(raw)
        return folder

    return make


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png_with_text() -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))
    text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(GIGA)))
    return b"\x89PNG\r\n\x1a\n" + header + text + _chunk(b"IDAT", zlib.compress(b"")) + _chunk(b"IEND", b"")


def _passes() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(file, "JPEG", progressive=True)
    raw = file.getvalue()
    last_scan = raw[raw.rfind(b"\xff\xda") : -2]
    return raw[:-2] + last_scan * 20_000 + raw[-2:]


def _frames() -> bytes:
    file = io.BytesIO()
    frames = [Image.new("L", (2000, 2000), number % 250) for number in range(100)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def _large() -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (8900, 8870), (9, 99, 9, 99)).save(file, "PNG", compress_level=1)
    return file.getvalue()


# --- tables, texts and folders ----------------------------------------------------------------------------


def _written(name: str, parts: Parts) -> Maker:
    def make(folder: Path) -> Path:
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            file.writelines(parts())
        return folder / name

    return make


def _many_files(folder: Path) -> Path:
    (folder / "a").mkdir()
    place = os.open(folder / "a", os.O_RDONLY)
    for number in range(MEGA):
        os.close(os.open(f"{number}.png", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)
    return folder


REFUSED: dict[str, Maker] = {
    "zip: 1 GB of zeros in 1 MB": _zeros,
    "zip: says 100 bytes, is 1 GB": _false_size,
    "zip: 50,000 files over the same bytes": _overlapping,
    "zip: zips in a zip (42.zip)": _nested,
    "zip: a million empty files": _empty_files,
    "zip: 1,000 names of 32,000 folders each": _deep_names,
    "Excel: grows a thousandfold": _sheet,
    "image: PNG whose text unpacks to 1 GB": _among(_png_with_text),
    "image: JPEG of 20,000 passes": _among(_passes),
    "image: 5,000 broken ones": _among(lambda: os.urandom(300), count=5_000),
    "CSV: 10 million columns": _written("data.csv", lambda: ("a," * 10 * MEGA, "b\n", ROWS)),
    "CSV: a quote that is never closed, 200 MB": _written(
        "data.csv", lambda: ("a,b\n", '"', *[ROWS * 2000] * 150)
    ),
    "CSV: a row held together by quotes, 200 MB": _written(
        "data.csv", lambda: ("a,b\n", *['"x\n",' * MEGA] * 35)
    ),
    "CSV: a stray quote in each of 500,000 rows": _written(
        "data.csv",
        lambda: ("a,b,label\n", *(f'{n},"{n % 7}.5,{"xy"[n % 2]}\n' for n in range(500_000))),
    ),
    "CSV: labels of 1 MB": _written(
        "data.csv", lambda: ("a,label\n", *(f"{n / 7},{'xy'[n % 2] * 900_000}\n" for n in range(100)))
    ),
    "CSV: every cell another text, as label": _written(
        "data.csv", lambda: ("a,label\n", *(f"{n},text {n}\n" for n in range(200_000)))
    ),
    "CSV: a line of 2 GB": _written("data.csv", lambda: ("a" * 2 * MEGA for _ in range(1000))),
    "JSON Lines: a million brackets": _written("d.jsonl", lambda: ('{"a":' + "[" * MEGA,)),
    "folder: a million files": _many_files,
}
# Unusual, but harmless.
READ: dict[str, Maker] = {
    "image: 20 of 79 million pixels": _among(_large, count=20),
    "image: 100 frames of 2,000 × 2,000": _among(_frames),
    "CSV: 200 rows of 1 MB cells": _written(
        "data.csv",
        lambda: ("text,label\n", *(f"word{n} " * 100_000 + f",{'xy'[n % 2]}\n" for n in range(200))),
    ),
    "CSV: 200 MB": _written(
        "data.csv",
        lambda: (
            "a,b,c,d,label\n",
            *(f"{n / 7},{n % 9}.5,{n * 7919 % 10007},n{n % 40}x,{'xy'[n % 2]}\n" for n in range(5 * MEGA)),
        ),
    ),
    "CSV: 3 million categories": _written(
        "data.csv",
        lambda: ("a,b,label\n", *(f"n{n}x,{n % 9}.5,{'xy'[n % 2]}\n" for n in range(3 * MEGA))),
    ),
    "text: a line of 1 GB": _written(
        "data.txt", lambda: ("To be, or not to be, that is the question. " * 20_000 for _ in range(1200))
    ),
}


# --- trials -----------------------------------------------------------------------------------------------


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
    parser.add_argument("--name", default="", help="only those with these words in their name")
    asked = parser.parse_args()
    chosen = {name: make for name, make in (REFUSED | READ).items() if asked.name in name}
    print("| attack | ended | seconds | peak MB | said |\n|---|---|---|---|---|")
    wrong, template = 0, TorchTemplate()
    for name, make in chosen.items():
        outcome = _try(make, asked.scratch, template, is_refused=name in REFUSED)
        wrong += not outcome.is_right
        ended = ("refused" if name in REFUSED else "read") if outcome.is_right else "NOT AS IT SHOULD"
        figures = f"{outcome.elapsed_s:.1f} | {outcome.peak_bytes / 1e6:,.0f}"
        print(f"| {name} | {ended} | {figures} | {outcome.words} |", flush=True)
    print(f"\n{len(chosen)} attacks, {wrong} not answered as they should be")
    sys.exit(1 if wrong else 0)


def _try(make: Maker, scratch: Path, template: TorchTemplate, *, is_refused: bool) -> Outcome:
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        (folder / "data").mkdir()
        return _look(make(folder / "data"), folder, template, is_refused=is_refused)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _look(path: Path, folder: Path, template: TorchTemplate, *, is_refused: bool) -> Outcome:
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
    is_right = is_bounded and answer["ok"] is not is_refused
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
