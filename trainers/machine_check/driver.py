"""Driver, wheel and card against each other: what torch and NVML each say, and whether they fit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.contract import environment, hardware
from trainers.contract.cuda_environment import Obstacle
from trainers.contract.processes import ProcessTree
from trainers.machine_check.cancelling import Patience, TooLateError

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROBE_LIMIT_S = 120.0
_LAST_LINE_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What torch says, in a process of its own.

    Attributes:
        error: why it said nothing; None where it did.
        uuids: of the GPUs that torch can use, among those that it was let see.
        left_out: those that it has no programs for, in words.
        obstacle: why torch can use none of them, and what to do.
        strategies: what can be picked, each with what it can train.
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
    """What the system says of NVIDIA's cards, with a driver or without."""

    num_cards: int
    problem: str | None
    driver: str | None
    cuda: str | None

    @staticmethod
    def look() -> Nvidia:
        """Look at this machine."""
        driver, cuda = hardware.driver_versions()
        cards = max(hardware.num_nvidia_cards(), len(hardware.all_gpus()))
        return Nvidia(num_cards=cards, problem=hardware.nvml_problem(), driver=driver, cuda=cuda)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether driver, wheel and card fit; None: there is no card, so there is nothing to fit.

    Attributes:
        why_no_gpu: why torch cannot use a GPU here; None where it can.
    """

    fits: bool | None
    words: str
    hint: str = ""
    why_no_gpu: str | None = None


def ask_torch(variables: Mapping[str, str], patience: Patience) -> Probe:
    """Ask a process that has torch.

    Raises:
        CancelledError: when somebody ended the check.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "trainers.machine_check.probe"],
        cwd=REPOSITORY,
        env=environment.for_a_child(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    tree = ProcessTree(process.pid)
    try:
        # A line is short enough for the pipe: it ends without anybody reading.
        patience.wait("torch", lambda: process.poll() is not None, time.monotonic() + PROBE_LIMIT_S)
    except TooLateError:
        return Probe(error=f"torch said nothing within {PROBE_LIMIT_S:.0f} s")
    finally:
        tree.kill()
        said = process.communicate()[0].decode("utf-8", errors="replace")
    last_line = (said.strip().splitlines() or ["it said nothing"])[-1]
    try:
        found = json.loads(last_line) if process.returncode == 0 else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return Probe(error=last_line[:_LAST_LINE_CHARS])
    obstacle = found.pop("obstacle")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    return Probe(**values, obstacle=None if obstacle is None else Obstacle(**obstacle))


def judge(nvidia: Nvidia, probe: Probe, *, num_free: int) -> Verdict:
    """Say whether driver, wheel and card fit each other.

    Args:
        num_free: how many GPUs torch was let see; with none free only what needs no context is known.
    """
    if probe.error is not None:
        words = f"torch cannot be used at all: {probe.error}"
        hint = "Install it again: pip install -r requirements.txt in this checkout's environment."
        return Verdict(fits=False, words=words, hint=hint, why_no_gpu="torch cannot be imported")
    wheel = f"torch {probe.torch}" + (f", built for CUDA {probe.cuda}" if probe.cuda else ", for CPUs only")
    if nvidia.num_cards == 0:
        return Verdict(fits=None, words=f"No NVIDIA card here; {wheel}.")
    cards = f"{nvidia.num_cards} NVIDIA card{'' if nvidia.num_cards == 1 else 's'}"
    if nvidia.problem is not None:
        return _no_driver(nvidia.problem, cards)
    together = f"{cards}, driver {nvidia.driver}, which knows CUDA up to {nvidia.cuda}; {wheel}"
    if (obstacle := probe.obstacle) is not None:
        words = f"{together}. {obstacle.reason}"
        return Verdict(fits=False, words=words, hint=obstacle.remedy, why_no_gpu=obstacle.reason)
    if probe.cuda is None:
        hint = "Install one that was built for GPUs; README says how."
        return Verdict(
            fits=False, words=f"{together}.", hint=hint, why_no_gpu="torch was built for CPUs only"
        )
    if num_free == 0:
        return Verdict(fits=True, words=f"{together}. The cards themselves are in use and were left alone.")
    if probe.left_out:
        why = f"this torch has no programs for {', '.join(probe.left_out)}"
        hint = "Install a torch that was built for this card: an older card needs an older one."
        why_no_gpu = None if probe.uuids else why
        return Verdict(fits=False, words=f"{together}; {why}.", hint=hint, why_no_gpu=why_no_gpu)
    return Verdict(fits=True, words=f"{together}. Torch can use {_those_free(num_free)}.")


def _those_free(num_free: int) -> str:
    return "the one that is free" if num_free == 1 else f"all {num_free} that are free"


def _no_driver(problem: str, cards: str) -> Verdict:
    words, hint = {
        "no_library": (
            "the package that asks the driver is not installed",
            "Install the requirements again: pip install -r requirements.txt.",
        ),
        "mismatch": ("the driver was updated while it was in use", "Restart the machine."),
    }.get(problem, ("no driver answers", "Install NVIDIA's driver, or pass the GPUs into this container."))
    return Verdict(fits=False, words=f"{cards}, but {words}.", hint=hint, why_no_gpu=words)
