"""What the watcher of a script is told when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# As in `engines/local/torchrun.py`: the file by which the ranks of a machine meet.
STORE = "TRAINERS_STORE"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a script runs.

    Attributes:
        run_dir: the run's directory.
        code_dir: the folder of the script's own files.
        on_cpu: requests for a GPU have no effect.
        num_ranks: the number of ranks that the run is to have.
        store: the file through which the ranks of this machine meet; empty: as the script says.
    """

    run_dir: Path
    code_dir: Path
    on_cpu: bool = False
    store: str = ""
    num_ranks: int = 1
