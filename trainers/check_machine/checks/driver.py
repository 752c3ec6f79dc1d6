"""Checks that the driver, the torch build ("wheel") and the GPUs ("cards") are compatible."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainers.check_machine.checks.cancelling import CancellableWait, TooLateError
from trainers.check_machine.checks.findings import Outcome
from trainers.contract.check_files import PROBE_LIMIT_S
from trainers.files import installation
from trainers.files.json_files import read_json_lines
from trainers.files.plain_files import temporary_folder
from trainers.machine import nvml
from trainers.machine.cuda_environment import Obstacle

PROBE = ("-m", "trainers.check_machine.checks.probe")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """torch's report, from a separate process.

    Attributes:
        error: Why the process failed; None if it succeeded.
        uuids: The visible GPUs that torch can use.
        left_out: Descriptions of the GPUs for which this torch has no kernels.
        obstacle: Why torch can use no GPU, with a remedy.
        strategies: The available strategies, each with the network that it can train.
    """

    error: str | None = None
    torch: str | None = None
    cuda: str | None = None
    uuids: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    obstacle: Obstacle | None = None
    strategies: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Nvidia:
    """The system's report about NVIDIA GPUs, with or without a driver."""

    num_cards: int
    problem: str | None
    driver: str | None
    cuda: str | None

    @staticmethod
    def read() -> Nvidia:
        """Read the GPUs and the driver of this machine."""
        driver, cuda = nvml.driver_versions()
        cards = max(nvml.num_nvidia_cards(), len(nvml.all_gpus()))
        return Nvidia(num_cards=cards, problem=nvml.nvml_problem(), driver=driver, cuda=cuda)


def ask_torch(variables: Mapping[str, str], waiter: CancellableWait) -> Probe:
    """Run a process with torch and read its report.

    Raises:
        CancelledError: If a user cancels the check.
    """
    with temporary_folder("ddp-check-") as folder:
        output, errors = folder / "said.jsonl", folder / "errors.log"
        command = [sys.executable, *PROBE]
        try:
            exit_code = waiter.run("torch", command, variables, output, errors, PROBE_LIMIT_S)
        except TooLateError:
            return Probe(error=f"it did not report within {PROBE_LIMIT_S:.0f} s.")
        # Plugins may print and libraries may warn before and after the report.
        reports = [line for line in read_json_lines(output) if "strategies" in line]
        error_lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if exit_code != 0 or not reports:
        return Probe(error=error_lines[-1] if error_lines else f"it ended with exit code {exit_code}.")
    report = reports[-1]
    obstacle = report.pop("obstacle")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in report.items()
    }
    return Probe(**values, obstacle=None if obstacle is None else Obstacle(**obstacle))


def judge(nvidia: Nvidia, probe: Probe, *, num_free: int) -> tuple[Outcome, str | None]:
    """Return whether driver, torch build and GPUs are compatible; skipped if there is no GPU.

    Args:
        num_free: Number of GPUs visible to torch. If 0, the probe has only facts that need no CUDA context.

    Returns:
        The outcome, and why torch cannot use a GPU on this machine; None if it can.
    """
    if probe.error is not None:
        hint = "Reinstall torch: pip install -r requirements.txt in this checkout's environment."
        outcome = Outcome.failed("torch cannot be used at all:", hint, detail=probe.error)
        return outcome, "torch cannot be imported"
    wheel = f"torch {probe.torch}" + (f", built for CUDA {probe.cuda}" if probe.cuda else ", for CPUs only")
    if nvidia.num_cards == 0:
        return Outcome.skipped(f"This machine has no NVIDIA card; {wheel}."), None
    cards = f"{nvidia.num_cards} NVIDIA card{'' if nvidia.num_cards == 1 else 's'}"
    if nvidia.problem is not None:
        message, hint = _NO_DRIVER.get(nvidia.problem, _NO_ANSWER)
        return Outcome.failed(f"{cards}, but {message}.", hint), message
    versions_text = f"{cards}, driver {nvidia.driver}, which supports CUDA up to {nvidia.cuda}; {wheel}"
    if (obstacle := probe.obstacle) is not None:
        return Outcome.failed(f"{versions_text}.", obstacle.remedy, detail=obstacle.reason), obstacle.reason
    if probe.cuda is None:
        hint = f"Install a torch that was built for GPUs: {installation.torch_for_gpus()}."
        return Outcome.failed(f"{versions_text}.", hint), "torch was built for CPUs only"
    if num_free == 0:
        return Outcome.passed(f"{versions_text}. The cards are in use, so they were not checked."), None
    if probe.left_out:
        reason = f"this torch has no kernels for {', '.join(probe.left_out)}"
        hint = f"Install a torch that was built for this card: {installation.torch_for_gpus()}."
        return Outcome.failed(f"{versions_text}; {reason}.", hint), None if probe.uuids else reason
    cards_text = "the free card" if num_free == 1 else f"all {num_free} free cards"
    return Outcome.passed(f"{versions_text}. Torch can use {cards_text}."), None


# Message and remedy for each problem that NVML reports.
_NO_DRIVER = {
    "no_library": (
        "the Python package for NVML is not installed",
        "Install the requirements again: pip install -r requirements.txt.",
    ),
    "mismatch": ("the driver was updated while it was in use", "Restart the machine."),
}
_NO_ANSWER = ("no driver responds", "Install NVIDIA's driver, or pass the GPUs into this container.")
