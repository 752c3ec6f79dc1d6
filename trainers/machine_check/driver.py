"""Driver, wheel and card against each other: what torch and NVML each say, and whether they fit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.contract import environment, hardware
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
        arch_list: what the wheel was built for, as `sm_90` and `compute_90`.
        gpus: name and capability of each that it was let see.
        strategies: what can be picked, each with what it can train.
    """

    error: str | None = None
    torch: str | None = None
    cuda: str | None = None
    is_usable: bool = False
    why_not: str | None = None
    arch_list: tuple[str, ...] = ()
    gpus: tuple[Mapping[str, Any], ...] = ()
    strategies: tuple[Mapping[str, Any], ...] = field(default=())


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
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    return Probe(**values)


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
    driver = f"driver {nvidia.driver}, which knows CUDA up to {nvidia.cuda}"
    if probe.cuda is None:
        hint = "Install a wheel that was built for GPUs; README says how."
        why = f"torch {probe.torch} was built for CPUs only"
        return Verdict(fits=False, words=f"{cards}, {driver}; but {why}.", hint=hint, why_no_gpu=why)
    together = f"{cards}, {driver}; {wheel}"
    if _is_too_old(nvidia.cuda, probe.cuda):
        why = f"the driver is older than the CUDA that torch was built for ({probe.cuda})"
        hint = f"Install a newer driver, or a wheel of torch that was built for CUDA {nvidia.cuda} or older."
        return Verdict(fits=False, words=f"{together}: {why}.", hint=hint, why_no_gpu=why)
    if num_free == 0:
        return Verdict(fits=True, words=f"{together}. The cards themselves are in use and were left alone.")
    return _judge_cards(probe, together)


def _judge_cards(probe: Probe, together: str) -> Verdict:
    if not probe.is_usable:
        why = f"torch cannot use them: {probe.why_not or 'it sees none'}"
        hint = (
            "Often a restart after a new driver helps; on machines with NVSwitch the service "
            "nvidia-fabricmanager must run, in the driver's version."
        )
        return Verdict(fits=False, words=f"{together}; {why}", hint=hint, why_no_gpu=why)
    strangers = [gpu for gpu in probe.gpus if not is_built_for(gpu["capability"], probe.arch_list)]
    if strangers:
        names = ", ".join(sorted({f"{gpu['name']} (sm_{_number(gpu['capability'])})" for gpu in strangers}))
        why = f"the wheel was not built for {names}"
        hint = (
            f"It was built for {', '.join(probe.arch_list)}: install a wheel that names this card's number."
        )
        return Verdict(fits=False, words=f"{together}; {why}.", hint=hint, why_no_gpu=why)
    names = ", ".join(sorted({str(gpu["name"]) for gpu in probe.gpus}))
    return Verdict(fits=True, words=f"{together}; it was built for {names}.")


def _no_driver(problem: str, cards: str) -> Verdict:
    words, hint = {
        "no_library": (
            "the package that asks the driver is not installed",
            "Install the requirements again: pip install -r requirements.txt.",
        ),
        "mismatch": ("the driver was updated while it was in use", "Restart the machine."),
    }.get(problem, ("no driver answers", "Install NVIDIA's driver, or pass the GPUs into this container."))
    return Verdict(fits=False, words=f"{cards}, but {words}.", hint=hint, why_no_gpu=words)


def is_built_for(capability: tuple[int, int], arch_list: tuple[str, ...]) -> bool:
    """Tell whether a wheel has code for a card: of its generation up to its number, or to be compiled for it.

    See the CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    major, minor = capability
    for name in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        kind, its_major, its_minor = match[1], int(match[2]), int(match[3])
        if match[4] == "a":
            fits = (its_major, its_minor) == (major, minor)
        elif kind == "sm" or match[4] == "f":
            fits = its_major == major and its_minor <= minor
        else:
            fits = (its_major, its_minor) <= (major, minor)
        if fits:
            return True
    return False


def _is_too_old(driver_cuda: str | None, wheel_cuda: str) -> bool:
    """Tell whether a driver is older than a wheel's CUDA; within one major version any two go together."""
    if driver_cuda is None:
        return False
    return int(driver_cuda.partition(".")[0]) < int(wheel_cuda.partition(".")[0])


def _number(capability: tuple[int, int]) -> str:
    return "".join(str(part) for part in capability)
