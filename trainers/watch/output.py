"""The output of a watched script: each rank's log."""

from __future__ import annotations

import os
import sys

from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_to_append
from trainers.machine import os_errors

# As in the engines: set where a supervisor owns the run.
SUPERVISED = "TRAINERS_SUPERVISED"


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
