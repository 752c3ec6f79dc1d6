"""The settings of a watched script, passed when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Environment variables of ranks: set under a supervisor; path of their store on one machine.
SUPERVISED, STORE = "TRAINERS_SUPERVISED", "TRAINERS_STORE"


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
        master_address: torchrun's MASTER_ADDR and MASTER_PORT; None: all ranks are on this machine.
    """

    run_dir: Path
    code_dir: Path
    on_cpu: bool = False
    store: str = ""
    master_address: tuple[str, str] | None = None
    num_ranks: int = 1
    resume_step: int | None = None
