"""Checks with short real jobs whether this machine trains correctly.

    python -m trainers.check_machine [--runs-dir RUNS] [--ranks N] [--device auto|cpu|cuda]
                                     [--except-gpus UUID,...] [--job-limit SECONDS] [--json]

Checks the GPU driver, the torch build, the GPUs, the disk of the runs and all-reduces. With DDP it checks a
checkpoint, a killed rank, a bit-exact resume and Stop; then it checks each other possible strategy. Uses only
idle GPUs, or else CPU ranks. Ctrl-C cancels. Exit code: 0: all checks passed, 1: not all passed, 2: could not
begin, 130: cancelled.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

from trainers.check_machine import report as report_module
from trainers.check_machine.check import CheckOptions, MachineCheck
from trainers.check_machine.checks.cancelling import CancellableWait
from trainers.check_machine.checks.findings import Finding
from trainers.contract.check_files import JOB_LIMIT_S, CheckFiles
from trainers.files import private_files
from trainers.machine import cuda_environment, host, lifeline, nvml
from trainers.machine.os_errors import explain

PASSED, NOT_PASSED, COULD_NOT_BEGIN, CANCELLED = 0, 1, 2, 130
MIN_MAX_RANKS = 4


def main() -> None:
    """Run the check, print its findings, and exit with the code for the result."""
    options = _options()
    runs_dir = options.runs_dir.resolve()
    private_files.begin(runs_dir)
    lifeline.adopt_orphans()
    waiter = CancellableWait()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: waiter.cancel())
    check_options = CheckOptions(
        check_id=options.check_id,
        device=options.device,
        num_ranks=options.ranks,
        except_gpus=options.except_gpus,
        job_limit_s=options.job_limit,
    )
    printer = _Json() if options.json else _Text()
    check = MachineCheck(runs_dir, check_options, waiter, printer.update)
    try:
        has_passed = check.run()
    except (OSError, ValueError) as error:
        print(f"This machine cannot be checked: {explain(error)}", file=sys.stderr)
        sys.exit(COULD_NOT_BEGIN)
    printer.end(check.to_json(), CheckFiles(runs_dir).report(options.check_id))
    sys.exit(CANCELLED if waiter.is_cancelled else PASSED if has_passed else NOT_PASSED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check this machine with short real jobs.")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="the runs directory")
    parser.add_argument(
        "--ranks", type=int, help="number of ranks (default: all free GPUs, or two CPU ranks)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--except-gpus", type=_uuids, default=(), metavar="UUID[,UUID...]", help="GPUs to skip"
    )
    parser.add_argument(
        "--job-limit", type=float, default=JOB_LIMIT_S, help="seconds after which a job counts as hung"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the complete state as a line at each change"
    )
    parser.add_argument("--check-id", default=uuid.uuid4().hex[:12], help="id of the stored result")
    options = parser.parse_args()
    max_ranks = max(MIN_MAX_RANKS, host.num_cores(), nvml.num_gpus())
    if options.ranks is not None and not 1 <= options.ranks <= max_ranks:
        parser.error(f"--ranks is {options.ranks}; allowed: 1 to {max_ranks}")
    try:
        CheckFiles(options.runs_dir).report(options.check_id)
    except ValueError as error:
        parser.error(str(error))
    return options


def _uuids(text: str) -> tuple[str, ...]:
    """Parse a list of UUIDs.

    Raises:
        ArgumentTypeError: If an entry is not a UUID. Indices are not accepted, because they depend on
            CUDA_VISIBLE_DEVICES.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not name.startswith((cuda_environment.GPU, cuda_environment.MIG)):
            raise argparse.ArgumentTypeError(
                f"{name!r} is not a UUID of a GPU, as in the output of `nvidia-smi -L`"
            )
    return names


class _Text:
    """Prints findings as rows of a table."""

    def __init__(self) -> None:
        self._device: str | None = None

    def update(self, state: dict[str, Any], finding: Finding | None) -> None:
        """Print the device once, then each new finding."""
        if state["device"] is not None and self._device is None:
            self._device = state["device"]
            print(f"Checking on {self._device}.", flush=True)
        if finding is not None:
            print(report_module.line(finding), flush=True)

    def end(self, state: dict[str, Any], report: Path) -> None:
        """Print the summary."""
        if state["had_company"]:
            print("Other runs were live, so the timings are unreliable.")
        report_text = f" For a bug report: {report}" if report.is_file() else ""
        print(f"{state['summary']} It took {state['took_s']:.0f} s.{report_text}", flush=True)


class _Json:
    """Prints the complete state as one line of JSON after each change."""

    def update(self, state: dict[str, Any], _finding: Finding | None) -> None:
        """Print the state."""
        print(json.dumps(state), flush=True)

    def end(self, _state: dict[str, Any], _report: Path) -> None:
        """Do nothing: the last line already contains everything."""


if __name__ == "__main__":
    main()
