"""Another user of the same machine attacks every port, process and lock of a live run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from tests import port_attacker
from tests.faults.registry import add
from tests.faults.trial import CannotBePlayedError, Trial
from tests.other_user import holding
from tests.port_attacker import LOOPBACK
from trainers.contract.rundir import RunDirectory

ATTACKS = 3


def _another_user(trial: Trial) -> None:
    if os.geteuid() != 0:
        raise CannotBePlayedError("becoming another user needs root")
    live = trial.start_and_wait()
    with tempfile.TemporaryDirectory(prefix="open-", dir="/var/tmp") as name, contextlib.ExitStack() as held:
        folder = Path(name)
        folder.chmod(0o777)
        _let_in(live.run)
        for path in (live.run.lock, live.run.events, live.run.commands, live.run.status):
            held.enter_context(holding(path))
        trial.strike()
        for _ in range(trial.dice.randint(1, ATTACKS)):
            report = port_attacker.attack(port_attacker.family(live.supervisor.pid), folder)
            trial.expect(set(report["ports"].values()) <= LOOPBACK, f"it listens on {report['ports']}")
            trial.expect(report["ports"], "no port was found to be attacked")
            trial.expect(not report["stores"], f"a store answered: {report['stores']}")
            trial.expect(not report["opened"], f"he could open {report['opened']}")
        trial.strike()
        trial.goes_on(live)
        trial.stop(live)
        trial.expect(not list(folder.iterdir()), "what he planted was run")


def _let_in(run: RunDirectory) -> None:
    """Let every user traverse the parent folders of the runs, as in a world-readable location."""
    for folder in run.path.parents:
        folder.chmod(folder.stat().st_mode | 0o005)
        if folder == Path(tempfile.gettempdir()):
            return


add("another user attacks a run", _another_user)
