"""Simulated ("paper") GPUs that torch's real CUDA build accepts; docs/paper-gpu.md says what they can show.

python -m tests.paper_gpu T4x2 -- COMMAND …     # run a program on two paper T4s
"""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
BUILD = "PAPER_BUILD"
# Drivers before this branch have other functions in NVML.
NEWER_NVML = 510


def environment(gpus: str, build: Path, state: Path, *, driver: int = 580, **more: str) -> dict[str, str]:
    """Return the variables of a process with paper GPUs; python/paper_gpu/__init__.py documents them.

    Args:
        gpus: as in PAPER_GPU, such as `T4x2`.
        build: the output folder of tests.paper_gpu.build.
        state: a folder for state shared between processes; the same for all processes of a machine.
        driver: the branch of the driver.
        more: other variables.
    """
    libraries = build / ("driver" if driver >= NEWER_NVML else "driver_before_510")
    return {
        "PAPER_GPU": gpus,
        "PAPER_DRIVER": str(driver),
        "PAPER_STATE": str(state),
        BUILD: str(build),
        "LD_PRELOAD": str(build / "libpaper_cuda.so"),
        "LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", libraries),
        "PYTHONPATH": _before("PYTHONPATH", HERE / "python"),
        **more,
    }


def _before(variable: str, folder: Path) -> str:
    """Return the variable's search path with this folder first, without folders of other paper GPUs."""
    found = [path for path in os.environ.get(variable, "").split(os.pathsep) if path]
    ours = (str(HERE), os.environ.get(BUILD, str(HERE)))
    return os.pathsep.join([str(folder), *(path for path in found if not path.startswith(ours))])
