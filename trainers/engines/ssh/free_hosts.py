"""Which hosts have no run. The launchers of a run live a moment longer than it: that moment is waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import StatusError
from trainers.engines.ssh.client import SshError
from trainers.engines.ssh.hosts import Hosts
from trainers.engines.ssh.starts import Start

POLL_S = 0.2
LEAVES_WITHIN_S = 15.0


def users_of(hosts: Hosts) -> Mapping[str, str | SshError]:
    """Return which run has each host, empty where none or one that has ended, or why that is not known."""
    return {
        name: each if isinstance(each, SshError) else _user_of(*each)
        for name, each in hosts.launchers().items()
    }


def free(users: Mapping[str, str | SshError]) -> list[str]:
    """Return the hosts that no run has."""
    return [name for name, run_id in users.items() if run_id == ""]


def why_not(users: Mapping[str, str | SshError]) -> str:
    """Say what the hosts do that are not free."""
    words = [
        str(user) if isinstance(user, SshError) else f"{name} trains {user}"
        for name, user in users.items()
        if user != ""
    ]
    return "; ".join(words) or "the others were taken a moment ago"


def wait_until_left(hosts: Hosts, names: Sequence[str]) -> None:
    """Wait until the launchers of ended runs are gone from some hosts.

    Raises:
        SshError: when one stays.
    """
    deadline = time.monotonic() + LEAVES_WITHIN_S
    while not set(names) <= set(free(users := hosts.users())):
        if time.monotonic() > deadline:
            raise SshError(f"a run that has ended does not leave its host: {why_not(users)}")
        time.sleep(POLL_S)
        hosts.forget()


def _user_of(tag: str, run_dir: str) -> str:
    """Return the run that a launcher has its host for; empty when this start of it has ended."""
    path = Path(run_dir)
    with contextlib.suppress(StatusError):
        recorded = status_file.read(RunDirectory(path).status) if run_dir else None
        start = None if recorded is None else Start.of(recorded.handle)
        if recorded is not None and recorded.state not in events.LIVE_STATES and start and start.tag == tag:
            return ""
    return path.name
