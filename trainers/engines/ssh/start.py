"""Starts a run from a terminal, as the page does.

python -m trainers.engines.ssh.start RUN_DIR --site FILE [--config JSON | --resume STEP]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainers.contract import config as config_module
from trainers.contract import rundir
from trainers.contract.rundir import RunDirectory
from trainers.engines.base import StartError
from trainers.engines.ssh.of_site import engine_of
from trainers.files import private_files
from trainers.files.json_files import parse_json
from trainers.machine.os_errors import explain


def main() -> None:
    """Create the run if a configuration is given, start it, and print its hosts."""
    parser = argparse.ArgumentParser(description="Start a run on PCs by SSH.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--site", type=Path, required=True, metavar="FILE", help="its table [ssh] names the hosts"
    )
    parser.add_argument("--resume", type=int, metavar="STEP", help="resume from the checkpoint of this step")
    parser.add_argument("--config", metavar="JSON", help="make RUN_DIR, with this configuration")
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    try:
        engine = engine_of(options.site)
        if options.config is not None:
            rundir.make(run, config_module.parse(parse_json(options.config.encode())))
        launch = engine.launch(run, options.resume, token=None)
        launch.wait_until_at_work()
    except (OSError, ValueError, StartError) as error:
        sys.exit(f"{run.path} was not started: {explain(error)}")
    print(" ".join(launch.start.hosts))


if __name__ == "__main__":
    main()
