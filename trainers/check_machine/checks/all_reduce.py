"""The check of all-reduces, which runs the communication check for a short time and judges its results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.check_machine.checks.cancelling import CancellableWait, TooLateError
from trainers.check_machine.checks.findings import Outcome, Value
from trainers.check_machine.checks.job import log_ends
from trainers.engines.local.torchrun import (
    RendezvousFiles,
    literal_command,
    torchrun_arguments,
    torchrun_options,
    torchrun_program,
)
from trainers.files.json_files import read_json_lines
from trainers.machine import lifeline

MIN_RANKS = 2
# Duration, long enough to compare with the last check. The communication check is more precise.
SECONDS_PER_SIZE = 0.15

MODULE = "trainers.check_communication"


def check_all_reduce(
    folder: Path,
    device: str,
    num_ranks: int,
    variables: Mapping[str, str],
    waiter: CancellableWait,
    limit_s: float,
) -> Outcome:
    """Run all-reduces of all sizes between the ranks, and check that every sum is correct.

    Raises:
        CancelledError: If a user cancels the check.
    """
    options = ("--device", device, "--seconds-per-size", str(SECONDS_PER_SIZE))
    arguments = torchrun_arguments(num_ranks, MODULE, *options)
    hint = hint_for(device, num_ranks)
    output, log = folder / "lines.jsonl", folder / "all_reduce.log"
    rendezvous = RendezvousFiles()
    environment = {**torchrun_options(folder / "torchrun"), **rendezvous.environment, **variables}
    command = lifeline.bound(*torchrun_program(), *arguments)
    try:
        exit_code = waiter.run("the measurements", command, environment, output, log, limit_s)
    except TooLateError:
        message = f"The ranks did not finish within {limit_s:.0f} s and were killed."
        return Outcome.failed(message, hint, log=log_ends([log]))
    finally:
        rendezvous.close()
    return judge(read_json_lines(output), exit_code, log_ends([log]), hint)


def hint_for(device: str, num_ranks: int) -> str:
    """Return the remedy for a failed all-reduce, with the shell command for the complete measurement."""
    by_hand = shlex.join(literal_command(torchrun_arguments(num_ranks, MODULE, "--device", device)))
    hint = f"To see the output, run the measurement in a terminal: {by_hand}."
    if device == "cpu":
        return hint
    return (
        f"{hint} `nvidia-smi topo -m` shows how GPUs are connected; "
        "in a container --shm-size=8g and --ipc=host often help."
    )


def judge(lines: list[dict[str, Any]], exit_code: int, log: str, hint: str) -> Outcome:
    """Return the outcome of the measurements.

    Args:
        lines: Output of the ranks.
        exit_code: Exit code of torchrun.
        log: End of its log.
        hint: Remedy for a failure.
    """
    errors = [line for line in lines if "error" in line]
    measured = [line for line in lines if "error" not in line]
    if errors or exit_code != 0 or not measured:
        first = errors[0] if errors else None
        if first is None:
            return Outcome.failed(
                f"The all-reduce failed: torchrun ended with exit code {exit_code}.", hint, log=log
            )
        message = f"The all-reduce failed on rank {first['rank']}:"
        return Outcome.failed(message, hint, detail=str(first["error"]), log=log)
    small, large = measured[0], measured[-1]
    values = (
        Value(name="bus bandwidth", value=large["bus_bytes_per_s"], unit="bytes/s"),
        Value(name="smallest message", value=small["time_s"], unit="s"),
    )
    backend = "NCCL" if large["backend"] == "nccl" else large["backend"]
    message = (
        f"{large['num_ranks']} ranks over {backend}: every sum of {small['size_bytes'] / 1e3:.0f} kB to "
        f"{large['size_bytes'] / 1e6:.0f} MB is correct to the last bit."
    )
    return Outcome.passed(message, values=values)
