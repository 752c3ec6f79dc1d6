"""Checkpoints of 11 million weights during training: pause of training, and write speed.

    python -m benchmarks.saving [--rounds 7] [--model resnet] [--size 18] [--folder .] [--json FILE]

Two CPU ranks train; each round requests a checkpoint as the button does and waits until it is complete. Then
training pauses, and this process writes the same bytes into files of the same sizes with the same syncs: the
speed of the disk. The time of a checkpoint is from the moment training stops for it until it has its final
name, including the copy of the state, the checksums and the ranks' agreement, while training continues;
`stall_ms` is the time for which training was blocked.

The files are in a temporary folder below FOLDER, which must be on a disk.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import pairs
from benchmarks.compare import NEVER, NUM_RANKS
from benchmarks.machine import Conditions
from benchmarks.pairs import Figures
from tests.harness import Launcher, LiveRun
from trainers.files.json_files import sync_directory

STEPS_BETWEEN = 5
SAVE_TIMEOUT_S = 120.0


def main() -> None:
    """Measure and print the table."""
    parser = pairs.parser_of(__doc__)
    parser.add_argument("--model", default="resnet")
    parser.add_argument("--size", default="18")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=Path())
    options = parser.parse_args()
    conditions = Conditions.note()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".saving-") as scratch:
        launcher = Launcher(Path(scratch).resolve())
        try:
            live = launcher.start(
                model=options.model,
                model_size=options.size,
                dataset="fashion_mnist",
                batch_size=options.batch_size,
                nproc_per_node=NUM_RANKS,
                num_epochs=100_000,
                eval_every_steps=NEVER,
                checkpoint_every_steps=NEVER,
            )
            rounds = [measure(live) for _ in range(options.rounds)]
            live.ask("stop", save=False)
            live.wait_for_end()
        finally:
            launcher.close()
    pairs.tell({name: pairs.column(rounds, name) for name in rounds[0]}, conditions, options.json)


def measure(live: LiveRun) -> Figures:
    """Save once during training, then write the same bytes once while training is paused."""
    newest = max(live.losses(), default=0)
    live.wait_for("step", lambda event: event["step"] >= newest + STEPS_BETWEEN, timeout_s=SAVE_TIMEOUT_S)
    step = live.ask("checkpoint")["step"]
    saved = live.wait_for("checkpoint", lambda event: event["step"] == step, timeout_s=SAVE_TIMEOUT_S)
    live.ask("pause")
    path = live.run.checkpoints / f"step_{step}"
    contents = {file.name: file.read_bytes() for file in path.iterdir()}
    alone_s = write_alone(live.run.path / "alone", contents)
    shutil.rmtree(path)
    live.ask("resume")
    num_bytes = sum(len(content) for content in contents.values())
    rate, disk_rate = saved["size_bytes"] / saved["duration_s"] / 1e6, num_bytes / alone_s / 1e6
    figures = {
        "stall_ms": 1000 * saved["stall_s"],
        "saved_mb_per_s": rate,
        "disk_mb_per_s": disk_rate,
        "saved_against_disk": rate / disk_rate,
        "saved_mb": saved["size_bytes"] / 1e6,
    }
    print(figures, file=sys.stderr, flush=True)
    return figures


def write_alone(folder: Path, contents: Mapping[str, bytes]) -> float:
    """Write and sync files, then delete them. Return the seconds of writing."""
    folder.mkdir()
    began = time.perf_counter()
    for name, content in contents.items():
        with (folder / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    sync_directory(folder)
    took_s = time.perf_counter() - began
    shutil.rmtree(folder)
    return took_s


if __name__ == "__main__":
    main()
