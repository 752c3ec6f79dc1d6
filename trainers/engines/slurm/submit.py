"""Submits a run from a terminal, as the page does.

python -m trainers.engines.slurm.submit RUN_DIR [--config JSON | --resume STEP] [--site FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainers.contract import config as config_module
from trainers.contract import rundir
from trainers.contract.rundir import RunDirectory
from trainers.engines.slurm.engine import SlurmEngine, job_of
from trainers.files import private_files
from trainers.files.json_files import parse_json
from trainers.machine.os_errors import explain


def main() -> None:
    """Create the run if a configuration is given, submit it, and print the job ID."""
    parser = argparse.ArgumentParser(description="Submit a run to the Slurm cluster of this login node.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", type=int, metavar="STEP", help="resume from the checkpoint of this step")
    parser.add_argument("--config", metavar="JSON", help="make RUN_DIR, with this configuration")
    parser.add_argument("--site", type=Path, metavar="FILE", help="what the site fixes (docs/site.md)")
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    try:
        if options.config is not None:
            rundir.make(run, config_module.parse(parse_json(options.config.encode())))
        handle = SlurmEngine(site_file=options.site).submit(run, options.resume, token=None)
    except (OSError, ValueError) as error:
        sys.exit(f"{run.path} was not submitted: {explain(error)}")
    print(job_of(handle))


if __name__ == "__main__":
    main()
