"""The settings of a watched script, passed when it is started, and the files for its output."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.rundir import RunDirectory
from trainers.files.plain_files import open_to_append
from trainers.machine import os_errors

# Same as in the engines: variable that is set for ranks under a supervisor.
SUPERVISED = "TRAINERS_SUPERVISED"
# Same as in `engines/local/torchrun.py`: variable with the file for the rendezvous of a machine's ranks.
STORE = "TRAINERS_STORE"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a script's process.

    Attributes:
        run_dir: the run's directory.
        code_dir: the folder of the script's own files.
        on_cpu: True if requests for a GPU have no effect.
        num_ranks: the number of ranks on each machine.
        resume_step: the checkpoint that `watch.load` loads; None: a new run.
        store: the file for the rendezvous of this machine's ranks; empty: the script's own rendezvous.
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
    # Python would write to a file in blocks; line buffering shows each line immediately.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
