"""Forward a run to an experiment tracker: `python -m trainers.forward RUN_DIR`.

The page starts this program for each run with `forward_to`, in a separate session. It therefore outlives the
page, and the supervisor does not count it among the run's processes. In a terminal it continues from the
stored position, or forwards a run that was started without a tracker (`--to`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.files import installation, private_files
from trainers.forward import state as state_module
from trainers.forward.follower import EventForwarder, Tracker, TrackerTarget, lock_follower
from trainers.forward.points import hyper_parameters
from trainers.forward.state import TRACKERS, ForwardState

LOWEST_PRIORITY = 19
GIVEN_UP, NOT_ALONE = 1, 3


def main() -> int:
    """Forward a run; return 0 if the tracker has accepted all events."""
    parser = argparse.ArgumentParser(prog="python -m trainers.forward", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--to", choices=tuple(TRACKERS), help="the tracker (default: from the run's configuration)"
    )
    parser.add_argument(
        "--address", help="address of the service, which receives the keys in this shell's environment"
    )
    options = parser.parse_args()
    run = RunDirectory(options.run_dir.resolve())
    private_files.begin(run.path.parent)
    os.nice(LOWEST_PRIORITY)
    config = run.read_config()
    name = options.to or config.forward_to
    if name not in TRACKERS:
        parser.error(f"the run has no tracker: choose one with --to: {', '.join(TRACKERS)}")
    if options.address is not None:
        if not TRACKERS[name].address:
            parser.error(f"{TRACKERS[name].label} has no address: it writes files into the run's folder")
        os.environ[TRACKERS[name].address] = options.address
    if options.address is not None or name != config.forward_to:
        config = replace(config, forward_address="")
    drop_foreign_keys(name, config)
    with lock_follower(run, name) as is_alone:
        if not is_alone:
            print(f"another process is already forwarding run {run.run_id} to {TRACKERS[name].label}")
            return NOT_ALONE
        if EventForwarder(run, config, name, lambda state: open_tracker(run, config, name, state)).follow():
            print(f"run {run.run_id} was forwarded completely")
            return 0
    print(f"run {run.run_id} was not forwarded completely; send the rest with: {state_module.command(run)}")
    return GIVEN_UP


def drop_foreign_keys(name: str, config: Config) -> None:
    """Remove the keys from the environment if the run uses another service than the environment. Otherwise a
    user could make the page send its keys to another server.
    """
    kind = TRACKERS[name]
    address = config.forward_address
    if address and address.rstrip("/") != os.environ.get(kind.address, "").rstrip("/"):
        for key in kind.keys:
            os.environ.pop(key, None)


def open_tracker(run: RunDirectory, config: Config, name: str, state: ForwardState) -> Tracker:
    """Import the tracker's library, and open the run.

    Raises:
        ValueError: if the library is not installed.
    """
    kind = TRACKERS[name]
    address = config.forward_address or os.environ.get(kind.address, "")
    # Trackio's server needs no package.
    if not kind.is_installed and not (name == "trackio" and address):
        install = f"pip install -r {installation.requirements(kind.requirements)}"
        raise ValueError(f"the package {kind.package} is not installed; install it with: {install}")
    target = TrackerTarget(
        run_name=config.name or run.run_id,
        project=config.forward_project or installation.NAME,
        address=address,
        is_offline=config.forward_offline,
        parameters=hyper_parameters(config),
        key=state.key,
        memory=state.memory,
        folder=run.path / state_module.FOLDER,
    )
    tracker: Tracker = importlib.import_module(f"trainers.forward.{name}").Run(target)
    return tracker


if __name__ == "__main__":
    sys.exit(main())
