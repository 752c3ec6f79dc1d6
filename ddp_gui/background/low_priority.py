"""CPU-heavy work, done by a low-priority process so that clicks stay fast."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from trainers.files.paths import REPOSITORY
from trainers.machine import environment

# A quarter of a core where training fills all of them: less, and an export would take minutes.
NICENESS = 5
PIECE_BYTES = 256 * 1024


class SlowProcessError(OSError):
    """The process failed before its end."""


def printed_by(module: str, asked: Any) -> Iterator[bytes]:
    """Yield what `python -m MODULE` prints for this JSON input; it ends with the page.

    Raises:
        SlowProcessError: when it fails; the output so far is incomplete.
    """
    lifeline = [sys.executable, "-m", "trainers.machine.lifeline", str(os.getpid())]
    with subprocess.Popen(
        [*lifeline, sys.executable, "-m", module],
        cwd=REPOSITORY,
        env=environment.for_a_child(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            make_nice(process)
            with contextlib.suppress(BrokenPipeError):  # its exit code says more
                process.stdin.write(orjson.dumps(asked))
                process.stdin.close()
            while piece := process.stdout.read1(PIECE_BYTES):  # type: ignore[attr-defined]
                yield piece
            if process.wait() != 0:
                raise SlowProcessError(f"{module} ended with {process.returncode}")
        finally:
            process.kill()


def make_nice(process: subprocess.Popen[bytes]) -> None:
    """Lower this process's priority below the page and training."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
