"""Run a program on paper GPUs: `python -m tests.paper_gpu T4x2 [NAME=VALUE …] -- COMMAND …`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.paper_gpu import BUILD, environment
from tests.paper_gpu.build import build


def main() -> int:
    """Build if necessary, run the program, return its exit code."""
    before, command = sys.argv[1 : sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1 :]
    gpus, *variables = before
    folder = Path(os.environ.get(BUILD) or Path(sys.prefix) / "paper_gpu")
    build(folder)
    more = dict(variable.split("=", 1) for variable in variables)
    driver = int(more.pop("PAPER_DRIVER", 580))
    with tempfile.TemporaryDirectory(prefix="paper-gpu-", dir="/dev/shm") as state:
        found = environment(gpus, folder, Path(state), driver=driver, **more)
        return subprocess.run(command, env=os.environ | found, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
