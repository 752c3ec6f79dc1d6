"""Makes a run save and end because its job ends soon. Batch scripts run this program on Slurm's warning
signal.

python -m trainers.engines.several_nodes.leave RUN_DIR --start NAME --why WORDS [--restarts-left K]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trainers.contract.rundir import RunDirectory
from trainers.engines.several_nodes import restarts
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.files import private_files


def main() -> None:
    """Send the run a stop command with a save; if restarts are left, record the reason for the restart."""
    parser = argparse.ArgumentParser(description="Make a run save and end, because its job ends soon.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--start", required=True, metavar="NAME")
    parser.add_argument("--why", required=True, metavar="WORDS")
    parser.add_argument("--restarts-left", type=int, default=0)
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    restarts.save_and_end(run, NodesFolder(run, options.start), options.why, options.restarts_left)


if __name__ == "__main__":
    main()
