"""Starts a run on other machines from a terminal, as the page does.

python -m trainers.engines.start RUN_DIR --engine NAME [--site FILE]
    [--config JSON [--code FOLDER] | --resume STEP]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainers.contract import code as code_module
from trainers.contract import config as config_module
from trainers.contract import rundir, start_from
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import LOCAL
from trainers.engines import registry
from trainers.engines.base import EngineOptions, StartError
from trainers.files import private_files
from trainers.files.json_files import parse_json
from trainers.machine.os_errors import explain


def main() -> None:
    """Create the run if a configuration is given, start it, and print its job number or hosts."""
    kinds = {name: kind for name, kind in registry.kinds().items() if name != LOCAL}
    parser = argparse.ArgumentParser(description="Start a run on a cluster, or on PCs by SSH.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--engine", required=True, choices=kinds)
    parser.add_argument("--site", type=Path, metavar="FILE", help="the site file (docs/site.md)")
    parser.add_argument("--resume", type=int, metavar="STEP", help="resume from the checkpoint of this step")
    parser.add_argument("--config", metavar="JSON", help="create RUN_DIR with this configuration")
    parser.add_argument(
        "--code", type=Path, metavar="FOLDER", help="folder of the user's script (only with --config)"
    )
    options = parser.parse_args()
    kind = kinds[options.engine]
    if kind.site_advice and options.site is None:
        parser.error(f"--site FILE is missing; its table [{kind.name}] {kind.site_advice}")
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    try:
        engine = kind.create(EngineOptions(runs_dir=run.path.parent, site_file=options.site))
        if options.config is not None:
            config = config_module.parse(parse_json(options.config.encode()))
            fill = start_from.copy_function(run, config)
            if config.is_script:
                folder = options.code or Path.cwd()
                code = code_module.read_folder(folder, folder / config.script)
                fill = lambda new_run: code_module.write(new_run.path, code)  # noqa: E731
            rundir.make(run, config, fill)
        launch = engine.start(run, options.resume)
        launch.wait_until_at_work()
    except (OSError, ValueError, StartError) as error:
        sys.exit(f"{run.path} was not started: {explain(error)}")
    print(launch.location)


if __name__ == "__main__":
    main()
