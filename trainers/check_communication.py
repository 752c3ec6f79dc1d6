"""Measures the speed of real all-reduces of several sizes between the ranks of this machine.

    torchrun OPTIONS --nproc-per-node N -m trainers.check_communication

Uses NCCL between GPUs and gloo between CPU ranks. Rank 0 prints one line of JSON per size; a rank that
fails prints a line of JSON with `error` and `rank`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trainers.contract.rundir import library_error_text
from trainers.engines.local.torchrun import shell_command
from trainers.machine.lifeline import die_with_parent, parent_by_name

# Maximum length of an error in a line of JSON: a write to a pipe is atomic up to PIPE_BUF bytes.
MAX_ERROR_LENGTH = 1_000
TIME_PER_SIZE_S = 0.7


def main() -> None:
    """Measure on this rank and end the process with its exit code."""
    parser = argparse.ArgumentParser(description="Measure all-reduces between ranks; started by torchrun.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--seconds-per-size",
        type=float,
        default=TIME_PER_SIZE_S,
        help="approximate time to measure each size",
    )
    parser.add_argument(
        "--up-to-bytes", type=int, help="skip larger tensors, which take minutes on a slow link"
    )
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start it with torchrun: {shell_command('trainers.check_communication')}")
    die_with_parent(parent_by_name())
    try:
        measure_all(options.device, options.seconds_per_size, options.up_to_bytes)
    except BaseException as error:  # noqa: BLE001 - a rank's main: any error is reported, and the job ends
        message = f"{type(error).__name__}: {library_error_text(error)}"[:MAX_ERROR_LENGTH]
        print_json_line({"error": message, "rank": int(os.environ["RANK"])})
        # Skip the interpreter's shutdown: a broken process group can hang or abort in its destructor.
        os._exit(1)


def measure_all(device: str, time_per_size_s: float, up_to_bytes: int | None = None) -> None:
    """Measure every size in ascending order; rank 0 prints each result immediately."""
    # Imported after `die_with_parent`, because importing torch takes seconds, in which torchrun may die.
    from trainers.parallel import bandwidth, process_group

    world = process_group.join(device)
    bandwidth.warm_up(world)
    for size_bytes in bandwidth.SIZES_BYTES:
        if up_to_bytes is not None and size_bytes > up_to_bytes:
            break
        measurement = bandwidth.measure(size_bytes, world, time_per_size_s)
        if world.is_main:
            print_json_line(asdict(measurement))
    process_group.leave()


def print_json_line(line: Mapping[str, Any]) -> None:
    """Print a line in one write, because all ranks write to the same pipe."""
    os.write(sys.stdout.fileno(), (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    main()
