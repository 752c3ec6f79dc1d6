"""A report of the machine without the runs that the current user may not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HIDDEN_RUN = "another person's run"


def without_hidden(report: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, Any]:
    """Return a report of the machine in which hidden runs have neither id nor person."""
    return report | {
        "gpus": [_gpu(gpu, is_shown) for gpu in report["gpus"]],
        "runs": [run for run in report["runs"] if is_shown(run["run_id"])],
    }


def _gpu(gpu: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, Any]:
    if gpu["processes"] is None:
        return gpu
    return gpu | {"processes": [_process(process, is_shown) for process in gpu["processes"]]}


def _process(process: dict[str, Any], is_shown: Callable[[str], bool]) -> dict[str, Any]:
    if process["run_id"] is None or is_shown(process["run_id"]):
        return process
    return process | {"run_id": None, "name": HIDDEN_RUN, "user": None}
