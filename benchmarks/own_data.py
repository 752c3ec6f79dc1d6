"""A person's own data of several gigabytes: how long it takes to prepare, and in how much memory.

    python -m benchmarks.own_data SCRATCH_DIR [--gigabytes 5] [--only images,text] [--keep]

Makes a folder of JPEG and PNG files in many classes and a text file in SCRATCH_DIR, prepares each, starts
a run of two CPU ranks on it, and a second one that finds it prepared. Memory is sampled from /proc ten
times a second: `RSS` is all a process has in memory, `anonymous` is what is not a file's pages, which the
kernel could drop at any time. What was made is deleted afterwards.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.harness import Launcher
from trainers.data.own import cache
from trainers.datasets.austen import whole_text

NUM_CLASSES = 50
WIDTH, HEIGHT = 640, 480
SAMPLE_EVERY_S = 0.1
NUM_STEPS = 100
TIMEOUT_S = 3 * 3600.0
GIGA = 10**9
MEGA = 10**6


@dataclass
class Peak:
    """The most memory that was seen, in bytes."""

    rss: int = 0
    anonymous: int = 0

    def see(self, pid: int) -> None:
        """Look at a process; one that has ended changes nothing."""
        try:
            text = Path(f"/proc/{pid}/status").read_text("ascii")
        except (FileNotFoundError, ProcessLookupError):
            return
        found = {
            line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if "kB" in line
        }
        self.rss = max(self.rss, found.get("VmRSS", 0), found.get("VmHWM", 0))
        self.anonymous = max(self.anonymous, found.get("RssAnon", 0))


class Watch:
    """Samples the memory of some processes until it is closed; all together in one peak each."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self.peaks: dict[int, Peak] = {}
        self._pids = pids
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_EVERY_S):
            for pid in self._pids():
                self.peaks.setdefault(pid, Peak()).see(pid)

    def close(self) -> Peak:
        """Stop, and return the largest of all."""
        self._ended.set()
        self._thread.join()
        seen = list(self.peaks.values()) or [Peak()]
        return Peak(max(peak.rss for peak in seen), max(peak.anonymous for peak in seen))


def main() -> None:
    """Make, prepare, train, tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--only", default="images,text")
    parser.add_argument("--keep", action="store_true", help="leave the data there for another time")
    options = parser.parse_args()
    folder = options.scratch.resolve() / "own_data_benchmark"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[cache.CACHE_VARIABLE] = str(folder / "cache")
    size = int(options.gigabytes * GIGA)
    try:
        if "images" in options.only:
            config = {"model": "resnet", "batch_size": 32}
            measure("images", folder, make_images(folder / "images", size), config)
        if "text" in options.only:
            measure("text", folder, make_text(folder / "text.txt", size), {"model": "gpt", "batch_size": 32})
    finally:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        if not options.keep:
            shutil.rmtree(folder)


def measure(name: str, folder: Path, path: Path, config: dict[str, Any]) -> None:
    """Print a block of figures of one kind of data."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    print(f"\n{name}: {len(files):,} files, {size / GIGA:.2f} GB", flush=True)
    look = inspect(path)
    print(f"  looked at without preparing: {tell(look)}", flush=True)
    made = inspect(path, "--prepare")
    made_bytes = sum(file.stat().st_size for file in (folder / "cache").rglob("*.bin"))
    print(f"  prepared: {tell(made)}; {made_bytes / GIGA:.2f} GB on the disk", flush=True)
    launcher = Launcher(folder / "runs")
    try:
        print(f"  run on prepared data: {train(launcher, path, config)}", flush=True)
        shutil.rmtree(folder / "cache")
        print(f"  run that prepares first: {train(launcher, path, config)}", flush=True)
    finally:
        launcher.close()
        shutil.rmtree(folder / "cache", ignore_errors=True)


def inspect(path: Path, *extra: str) -> tuple[float, Peak]:
    """Look at the data in a process of its own; return its seconds and its memory."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "trainers.plugins.inspect_data", "--path", str(path), *extra]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    watch = Watch(lambda: [process.pid])
    output, _ = process.communicate()
    seconds = time.perf_counter() - started
    assert process.returncode == 0 and b'"ok": true' in output, output[-2000:]
    return seconds, watch.close()


def train(launcher: Launcher, path: Path, config: dict[str, Any]) -> str:
    """Train some steps; return in words when the first one came and what memory the ranks had."""
    started = time.perf_counter()
    live = launcher.start(
        dataset="own",
        data_path=str(path),
        max_steps=NUM_STEPS,
        num_epochs=1000,
        eval_every_steps=10**9,
        checkpoint_every_steps=10**9,
        **config,
    )
    watch = Watch(lambda: list(live.ranks().values()))
    live.wait_for("step", timeout_s=TIMEOUT_S)
    first_s = time.perf_counter() - started
    live.wait_for("step", lambda event: event["step"] >= NUM_STEPS, timeout_s=TIMEOUT_S)
    live.wait_for_end(timeout_s=TIMEOUT_S)
    return f"first step after {tell((first_s, watch.close()))} a rank, over {NUM_STEPS} steps"


def tell(measured: tuple[float, Peak]) -> str:
    """Return seconds and memory in words."""
    seconds, peak = measured
    return f"{seconds:,.1f} s, peak RSS {peak.rss / MEGA:,.0f} MB, anonymous {peak.anonymous / MEGA:,.0f} MB"


def make_images(folder: Path, size: int) -> Path:
    """Write images of soft noise until there are enough bytes: three JPEG for each PNG, each another one."""
    if folder.is_dir():
        return folder
    made = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        start = 0
        while made < size:
            made += sum(pool.map(lambda number: _make_image(folder, number), range(start, start + 256)))
            start += 256
    return folder


def _make_image(folder: Path, number: int) -> int:
    dice = np.random.default_rng(number)
    suffix = "png" if number % 4 == 3 else "jpg"
    path = folder / f"class_{number % NUM_CLASSES:02}" / f"{number:06}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(dice.integers(0, 256, (HEIGHT // 4, WIDTH // 4, 3), dtype=np.uint8))
    image = coarse.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    image.save(path, quality=92, compress_level=1)  # each format takes its own of the two
    return path.stat().st_size


def make_text(path: Path, size: int) -> Path:
    """Write the bundled novels' paragraphs in ever new orders until there are enough bytes."""
    if path.is_file():
        return path
    dice = random.Random(0)  # noqa: S311
    paragraphs = whole_text().split("\n\n")
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            dice.shuffle(paragraphs)
            file.write("\n\n".join(paragraphs))
    return path


if __name__ == "__main__":
    main()
