"""Folders of images compared with the decoder alone: images per second during and after preparation.

    python -m benchmarks.loading [--rounds 7] [--images 6000] [--json FILE]

Creates a folder of JPEG files of 256 × 256 pixels. Alternates, in this process and with the same number of
threads:

- decoder: Pillow opens, decodes, scales and crops each file to the training size, and nothing else;
- preparing: our first reading of the folder, from the path to the complete prepared data on the disk;
- prepared: ten epochs of training batches for two CPU ranks, each a process with one thread.

Each preparation begins with an empty cache: the files of the previous one are deleted. Times are wall-clock
times; processor times are reported too, because they are more reliable on a shared machine. The files were
written recently, so reading them does not wait for the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps

from benchmarks import pairs
from benchmarks.compare import NUM_RANKS
from benchmarks.machine import Conditions
from benchmarks.pairs import Figures
from tools.page_driver import REPOSITORY
from trainers.contract import config as config_module
from trainers.data.dataset import DataOptions
from trainers.data.loading import Loader
from trainers.data.micro_batches import ShardedBatches
from trainers.data.own import cache
from trainers.data.own.dataset import Own
from trainers.machine import host

SIDE = 256
NUM_CLASSES = 10
BATCH_SIZE = 64
NUM_EPOCHS = 10
FILES_AT_ONCE = 16


def main() -> None:
    """Measure alternately and print the table; with --be-rank, run as a rank."""
    parser = pairs.parser_of(__doc__)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument(
        "--be-rank", type=int, help="(for its own use) read the folder in FOLDER as this rank"
    )
    parser.add_argument("--folder", type=Path, help="(for its own use)")
    options = parser.parse_args()
    if options.be_rank is not None:
        be_a_rank(options.folder, options.be_rank)
        return
    conditions = Conditions.note()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        files = make_images(folder, options.images)
        found = pairs.in_turns(ways(folder, files, Path(scratch)), options.rounds)
    rates = {name: pairs.column(rounds, "images_per_s") for name, rounds in found.items()}
    told = {f"{name}_images_per_s": values for name, values in rates.items()}
    told["preparing_against_decoder"] = pairs.ratios(rates["preparing"], rates["decoder"])
    told["prepared_against_decoder"] = pairs.ratios(rates["prepared"], rates["decoder"])
    for name in ("decoder", "preparing"):
        told[f"{name}_cpu_us_an_image"] = pairs.column(found[name], "cpu_us_an_image")
    pairs.tell(told, conditions, options.json)


def ways(folder: Path, files: Sequence[Path], scratch: Path) -> dict[str, Callable[[], Figures]]:
    """Return the measured functions.

    Each preparation begins with an empty cache; the last one is then read.
    """

    def preparing() -> Figures:
        os.environ[cache.CACHE_VARIABLE] = str(scratch / "cache")
        shutil.rmtree(scratch / "cache", ignore_errors=True)
        return timed(len(files), lambda: Own(DataOptions(path=str(folder))).prepared)

    def prepared() -> Figures:
        if cache.CACHE_VARIABLE not in os.environ:
            preparing()
        return read_by_ranks(folder)

    shape = (128, 128)  # the size to which these files are scaled
    return {
        "decoder": lambda: timed(len(files), lambda: decode_all(files, shape)),
        "preparing": preparing,
        "prepared": prepared,
    }


def timed(count: int, work: Callable[[], object]) -> Figures:
    """Return images per second and processor time per image of `work`, including child processes."""
    began, began_cpu = time.perf_counter(), sum(os.times()[:4])
    work()
    took_s, cpu_s = time.perf_counter() - began, sum(os.times()[:4]) - began_cpu
    return {"images_per_s": count / took_s, "cpu_us_an_image": 1e6 * cpu_s / count}


def decode_all(files: Sequence[Path], shape: tuple[int, int]) -> None:
    """Decode and scale every file with Pillow, on all cores."""

    def decode(chunk: Sequence[Path]) -> None:
        for file in chunk:
            with Image.open(file) as image:
                image.draft("RGB", shape)
                fitted = ImageOps.fit(image.convert("RGB"), shape, method=Image.Resampling.BILINEAR)
                np.ascontiguousarray(np.asarray(fitted).transpose(2, 0, 1))

    chunks = [files[start : start + FILES_AT_ONCE] for start in range(0, len(files), FILES_AT_ONCE)]
    with ThreadPoolExecutor(host.num_cores()) as threads:
        for _ in threads.map(decode, chunks):
            pass


def read_by_ranks(folder: Path) -> Figures:
    """Read ten epochs in one process per rank. Return the total images per second."""
    command = [sys.executable, "-m", "benchmarks.loading", "--folder", str(folder), "--be-rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(NUM_RANKS)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()  # wait until all are ready
    answers = [json.loads(output) for output in tell_all(ranks, "go\n")]
    took_s = max(answer["ended_s"] for answer in answers) - min(answer["began_s"] for answer in answers)
    return {"images_per_s": sum(answer["num_images"] for answer in answers) / took_s}


def tell_all(ranks: Sequence[subprocess.Popen[str]], word: str) -> list[str]:
    """Send a line to every process simultaneously. Return the remaining output of each."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return [output for output, _ in threads.map(lambda rank: rank.communicate(word), ranks)]


def be_a_rank(folder: Path, rank: int) -> None:
    """Read this rank's batches and print the times and the number of images."""
    torch.set_num_threads(1)
    config = config_module.parse({"batch_size": BATCH_SIZE, "device": "cpu"})
    device = torch.device("cpu")
    train, _ = Own(DataOptions(path=str(folder))).load(device)
    batches = ShardedBatches(len(train), BATCH_SIZE, seed=0, replica=rank, num_replicas=NUM_RANKS)
    loader = Loader(train, batches, config, device)
    loader.set_epoch(0)
    next(loader.starting_at(0))  # the first batch includes one-time initialization
    print("ready", flush=True)
    sys.stdin.readline()
    # This clock is the same in all processes.
    began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    num_images = 0
    for epoch in range(1, 1 + NUM_EPOCHS):
        loader.set_epoch(epoch)
        num_images += sum(len(batch.inputs) for batch in loader.starting_at(0))
    ended_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    print(json.dumps({"began_s": began_s, "ended_s": ended_s, "num_images": num_images}))


def make_images(folder: Path, count: int) -> list[Path]:
    """Write distinct smooth pictures with a few shapes, in class folders."""
    files = [folder / f"class_{number % NUM_CLASSES}" / f"{number:06}.jpg" for number in range(count)]
    for file in files[:NUM_CLASSES]:
        file.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(_make_image, files, range(count)):
            pass
    return files


def _make_image(file: Path, number: int) -> None:
    dice = np.random.default_rng(number)
    corners = Image.fromarray(dice.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    image = corners.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(20):
        left, top, width, height = (int(value) for value in dice.integers(0, SIDE // 2, 4))
        colour = tuple(int(value) for value in dice.integers(0, 256, 3))
        draw.ellipse((left, top, left + width, top + height), fill=colour)
    image.save(file, quality=90)


if __name__ == "__main__":
    main()
