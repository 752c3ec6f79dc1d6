"""Folders of images against the decoder alone: images a second while they are prepared, and once they are.

    python -m benchmarks.loading [--rounds 7] [--images 6000] [--json FILE]

Makes a folder of JPEG files of 256 × 256 pixels. In turns, in this process and on as many threads:

- decoder: Pillow opens, decodes, scales and cuts each file to what training gets, and nothing else;
- preparing: our first reading of the folder, from the path to the prepared data whole on the disk;
- prepared: ten epochs of training batches as two CPU ranks get them, each a process of one thread.

A preparation begins with an empty cache: what the one before has written is deleted. Times are by the clock
on the wall; beside them is the processor's, which says more where others use the machine. The files were
written a moment ago, so nobody waits for the disk to read them.
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
from trainers.data.loading import Loader, ShardedBatches
from trainers.data.own import cache, processes
from trainers.data.own.dataset import Own

SIDE = 256
NUM_CLASSES = 10
BATCH_SIZE = 64
NUM_EPOCHS = 10
FILES_AT_ONCE = 16


def main() -> None:
    """Measure in turns and print the table; as a rank, be one."""
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
    """Return what is measured; each preparation begins with an empty cache, and the last one is read."""

    def preparing() -> Figures:
        os.environ[cache.CACHE_VARIABLE] = str(scratch / "cache")
        shutil.rmtree(scratch / "cache", ignore_errors=True)
        return timed(len(files), lambda: Own(DataOptions(path=str(folder))).prepared)

    def prepared() -> Figures:
        if cache.CACHE_VARIABLE not in os.environ:
            preparing()
        return read_by_ranks(folder)

    shape = (128, 128)  # what files of this size come to
    return {
        "decoder": lambda: timed(len(files), lambda: decode_all(files, shape)),
        "preparing": preparing,
        "prepared": prepared,
    }


def timed(count: int, work: Callable[[], object]) -> Figures:
    """Do it; return images a second and the processor's time an image, also of processes that it started."""
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
    with ThreadPoolExecutor(processes.num_cores()) as threads:
        for _ in threads.map(decode, chunks):
            pass


def read_by_ranks(folder: Path) -> Figures:
    """Read an epoch in as many processes as ranks; return the images a second of all together."""
    command = [sys.executable, "-m", "benchmarks.loading", "--folder", str(folder), "--be-rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(NUM_RANKS)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()  # all are ready
    answers = [json.loads(output) for output in tell_all(ranks, "go\n")]
    took_s = max(answer["ended_s"] for answer in answers) - min(answer["began_s"] for answer in answers)
    return {"images_per_s": sum(answer["num_images"] for answer in answers) / took_s}


def tell_all(ranks: Sequence[subprocess.Popen[str]], word: str) -> list[str]:
    """Say a word to every process, at once, and return what each answers to its end."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return [output for output, _ in threads.map(lambda rank: rank.communicate(word), ranks)]


def be_a_rank(folder: Path, rank: int) -> None:
    """Read this rank's batches of an epoch and print when and how many."""
    torch.set_num_threads(1)
    config = config_module.parse({"batch_size": BATCH_SIZE, "device": "cpu"})
    device = torch.device("cpu")
    train, _ = Own(DataOptions(path=str(folder))).load(device)
    batches = ShardedBatches(len(train), BATCH_SIZE, seed=0, replica=rank, num_replicas=NUM_RANKS)
    loader = Loader(train, batches, config, device)
    loader.set_epoch(0)
    next(loader.starting_at(0))  # the first batch pays for what is made once
    print("ready", flush=True)
    sys.stdin.readline()
    # The same clock in all processes.
    began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    num_images = 0
    for epoch in range(1, 1 + NUM_EPOCHS):
        loader.set_epoch(epoch)
        num_images += sum(len(batch.inputs) for batch in loader.starting_at(0))
    ended_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    print(json.dumps({"began_s": began_s, "ended_s": ended_s, "num_images": num_images}))


def make_images(folder: Path, count: int) -> list[Path]:
    """Write soft pictures with a few shapes, each another one, in class folders."""
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
