"""Start and stop the process that generates a synthetic run, for benchmarks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.page_driver import REPOSITORY
from trainers.contract.rundir import RunDirectory


def finished_run(path: Path, num_steps: int, *extra: str) -> RunDirectory:
    """Generate a finished run in a separate process, so that its memory is not part of the measurement."""
    subprocess.run([*_command(path, num_steps), *extra], cwd=REPOSITORY, check=True)
    return RunDirectory(path)


@contextlib.contextmanager
def live_run(path: Path, num_steps: int, *extra: str) -> Iterator[RunDirectory]:
    """Generate a run of `num_steps` steps that receives four updates per second until the block ends."""
    command = [*_command(path, num_steps), "--live", *extra]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"ready":
            raise RuntimeError(f"the made-up run did not begin (exit code {process.wait()})")
        yield RunDirectory(path)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _command(path: Path, num_steps: int) -> list[str]:
    return [sys.executable, "-m", "tests.made_run", str(path), "--steps", str(num_steps)]
