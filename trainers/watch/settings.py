"""The settings of a watched script, passed when it is started, and the files for its output."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_to_append
from trainers.machine import os_errors

# Environment variables: set for ranks that run under a supervisor; the path of the ranks' store on one machine.
SUPERVISED, STORE = "TRAINERS_SUPERVISED", "TRAINERS_STORE"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a script runs.

    Attributes:
        run_dir: the run's directory.
        code_dir: the folder of the script's own files.
        on_cpu: requests for a GPU have no effect.
        num_ranks: the number of ranks on each machine.
        resume_step: the checkpoint that `watch.load` loads; None: the run begins.
        store: the file through which the ranks of this machine meet; empty: as the script says.
        meeting: torchrun's MASTER_ADDR and MASTER_PORT; None: all ranks are on this machine.
    """

    run_dir: Path
    code_dir: Path
    on_cpu: bool = False
    store: str = ""
    meeting: tuple[str, str] | None = None
    num_ranks: int = 1
    resume_step: int | None = None


def redirect_output(run: RunDirectory, rank: int) -> None:
    """Redirect stdout and stderr, including output of C++ code, to this rank's log."""
    run.logs.mkdir(exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = open_to_append(run.rank_log(rank))
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os_errors.keep_going_without_log()
    # A log is a file, which Python would write in blocks: a line is seen when it is printed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
