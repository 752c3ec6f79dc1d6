"""The engine of hosts that share no folder: a run is brought to one of them, and followed there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainers.contract import events, tickets
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, Status
from trainers.engines.base import StartError
from trainers.engines.several_nodes import restarts
from trainers.engines.ssh.client import SshError
from trainers.engines.ssh.engine import NAME, POLL_S, SshEngine, SshLaunch
from trainers.engines.ssh.hosts import Hosts
from trainers.engines.ssh.starts import Start
from trainers.engines.ssh.unshared.copies import Copies
from trainers.machine.clock import now_unix_s

AT_WORK_WITHIN_S = 60.0


class UnsharedLaunch(SshLaunch):
    """A start of a run that is brought to its host first."""

    def __init__(self, engine: UnsharedSshEngine, copies: Copies, run: RunDirectory, start: Start) -> None:
        super().__init__(engine, run, start)
        self._copies = copies

    def wait_until_owned(self) -> None:
        """Return at once: its status says that it waits, and then what becomes of it."""

    def wait_until_at_work(self) -> None:
        """Wait until its launcher has written its own status.

        Raises:
            StartError: when it does not begin.
        """
        self._copies.wait_until_sent(self.start)
        deadline = time.monotonic() + AT_WORK_WITHIN_S
        while True:
            recorded = status_file.read(self._run.status)
            if recorded is not None and recorded.state not in events.LIVE_STATES and recorded.error:
                raise StartError(recorded.error)
            if recorded is not None and recorded.started_unix_s is not None:
                return
            if time.monotonic() > deadline:
                raise StartError(f"{self.start.hosts[0]} said nothing for {AT_WORK_WITHIN_S:.0f} s")
            time.sleep(POLL_S)

    def wait_for_end(self) -> None:
        """Wait until it has ended, and all it has written is here."""
        while self._copies.is_alive(self._run, self.start) is not False:
            time.sleep(POLL_S)


class UnsharedSshEngine(SshEngine):
    """Hosts of one site file that share no folder; each run has one of them."""

    waits_where = "on its way to its host"
    _why_no_more = "the hosts share no folder, and all ranks write their checkpoints into one"

    def __init__(self, site_file: Path, hosts: Hosts, copies: Copies) -> None:
        super().__init__(site_file, hosts)
        self.copies = copies

    def is_alive(self, run: RunDirectory, handle: Handle) -> bool | None:
        """Tell whether it is on its way, at work, or not all of it is back; None while its host is silent."""
        start = Start.of(handle)
        return False if start is None else self.copies.is_alive(run, start)

    def stop(self, run: RunDirectory, *, save: bool, why: str = "") -> str:
        """Have a run end, or not begin; a host that is silent hears of it later."""
        start = Start.of(self._status_of(run).handle)
        if start is not None and self.copies.cancel(start):
            return ""
        return run.append_command("stop", save=save, **({"why": why, "anyway": True} if why else {}))

    def is_waiting(self, handle: Handle) -> bool:
        """Tell whether a run is being brought to its host."""
        return self.copies.words(handle) is not None

    def why_it_waits(self, handle: Handle) -> str | None:
        """Return what is being brought to its host, and how far that is."""
        return self.copies.words(handle)

    def silence(self, handle: Handle) -> str | None:
        """Return since when a run's host has not answered."""
        return self.copies.silence(handle)

    def links(self) -> Sequence[tuple[str, str]]:
        """Return none: no run has two hosts."""
        return ()

    def _most_hosts(self) -> int:
        return 1

    def _users(self) -> Mapping[str, str | SshError]:
        """Return which run has each host, those on their way there included."""
        return {**self.hosts.users(), **self.copies.taken_hosts()}

    def _begin(self, run: RunDirectory, start: Start, resume_step: int | None) -> UnsharedLaunch:
        """Have a run brought to its host, and started there."""
        start = replace(start, run_dir=self.copies.layout.run(run.run_id))
        waiting = Status(state="queued", engine=NAME, handle=start.handle, last_seen_unix_s=now_unix_s())
        run.write_status(waiting)
        tickets.leave_line(run)
        self.copies.send(run, start, lambda: self._start_on_all(run, start, resume_step))
        return UnsharedLaunch(self, self.copies, run, start)

    def _end(self, run: RunDirectory, status: Status, message: str) -> None:
        """Kill a run's processes, and write its final events and status, when all it has written is here."""
        start = Start.of(status.handle)
        assert start is not None, "a live run of this engine has a start"
        if self.copies.cancel(start):
            self.copies.wait_until_sent(start)
            return
        if silent := self.reap(start):  # then it may go on there for hours
            raise SshError(f"run {run.run_id} cannot be killed now: {'; '.join(silent)}")
        self.copies.wait_until_back(run, start)
        restarts.say_stopped(run, status, message)
