"""All runs that were brought to a host: those on their way there, and those that are followed."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Handle, Status
from trainers.engines.local import final_events
from trainers.engines.ssh.client import Ssh, SshError
from trainers.engines.ssh.site import SshHost
from trainers.engines.ssh.starts import Start
from trainers.engines.ssh.unshared import bring
from trainers.engines.ssh.unshared.bring import CancelledError, Layout
from trainers.engines.ssh.unshared.mirror import Mirror
from trainers.engines.ssh.unshared.rsync import Rsync
from trainers.machine.clock import hour_and_minute, now_unix_s
from trainers.machine.os_errors import explain

log = logging.getLogger(__name__)

POLL_S = 0.2
BACK_WITHIN_S = 120.0
STOPPED_BEFORE = "Stopped before it began."


class Journey:
    """A run on its way to its host."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.words = "Waiting to be brought."
        self.is_cancelled = threading.Event()


class Copies:
    """Brings runs to hosts and follows them there; safe to be used by several threads.

    Args:
        hosts: by name.
        layout: where things are on each.
    """

    def __init__(self, ssh: Ssh, hosts: Mapping[str, SshHost], layout: Layout) -> None:
        self._ssh, self._rsync = ssh, Rsync(ssh)
        self._hosts = hosts
        self.layout = layout
        self._journeys: dict[str, Journey] = {}
        self._mirrors: dict[str, Mirror] = {}
        self._lock = threading.Lock()

    def send(self, run: RunDirectory, start: Start, start_there: Callable[[], None]) -> None:
        """Bring a run to its host and start it there, in a thread.

        Args:
            start_there: raises SshError.
        """
        journey = Journey(start)
        with self._lock:
            self._journeys[start.tag] = journey
        threading.Thread(
            target=self._send, args=(run, journey, start_there), name=f"bring-{run.run_id}", daemon=True
        ).start()

    def words(self, handle: Handle) -> str | None:
        """Return in words how far a run is on its way to its host; None: it is on no way."""
        start = Start.of(handle)
        journey = None if start is None else self._journeys.get(start.tag)
        return None if journey is None else journey.words

    def silence(self, handle: Handle) -> str | None:
        """Return in words since when a run's host has not answered; None: it does."""
        start = Start.of(handle)
        mirror = None if start is None else self._mirrors.get(start.tag)
        if start is None or mirror is None or mirror.silent_since_unix_s is None:
            return None
        return (
            f"{start.hosts[0]} has not answered since {hour_and_minute(mirror.silent_since_unix_s)}. What is "
            "shown here is from then; the run may well go on there, and what it does meanwhile will come."
        )

    def taken_hosts(self) -> Mapping[str, str]:
        """Return the hosts that runs are being brought to, and the start of each."""
        with self._lock:
            return {journey.start.hosts[0]: tag for tag, journey in self._journeys.items()}

    def cancel(self, start: Start) -> bool:
        """Have a run not begin; tell whether it was still on its way."""
        journey = self._journeys.get(start.tag)
        if journey is None:
            return False
        journey.is_cancelled.set()
        return True

    def is_alive(self, run: RunDirectory, start: Start) -> bool | None:
        """Tell whether a run is at work there, or not all of it is back; None where that is not known."""
        if start.tag in self._journeys:
            return True
        mirror = self.mirror(run, start)
        if mirror is None or mirror.is_back.is_set():
            return False
        return None if mirror.silent_since_unix_s is not None else True

    def mirror(self, run: RunDirectory, start: Start) -> Mirror | None:
        """Return what follows a start, from now on; None where its host or folder is not of this site file.

        What is back is deleted there, so the folder is believed of nobody's status.
        """
        host = self._hosts.get(start.hosts[0])
        if host is None or start.run_dir != self.layout.run(run.run_id):
            return None
        with self._lock:
            mirror = self._mirrors.get(start.tag)
            if mirror is None:
                mirror = self._mirrors[start.tag] = Mirror(self._ssh, self._rsync, run, start, host)
                mirror.begin()
            return mirror

    def wait_until_sent(self, start: Start) -> None:
        """Wait until a run is on its way no more: it was started, or its status says why not."""
        while start.tag in self._journeys:
            time.sleep(POLL_S)

    def wait_until_back(self, run: RunDirectory, start: Start) -> None:
        """Wait until all that an ended run has written is here.

        Raises:
            SshError: when that takes too long.
        """
        mirror = self.mirror(run, start)
        if mirror is not None and not mirror.is_back.wait(BACK_WITHIN_S):
            raise SshError(f"what run {run.run_id} has written is not back from {start.hosts[0]} yet")

    def _send(self, run: RunDirectory, journey: Journey, start_there: Callable[[], None]) -> None:
        start = journey.start
        host = self._hosts[start.hosts[0]]

        def say(words: str) -> None:
            journey.words = words

        try:
            bring.bring(self._ssh, self._rsync, host, self.layout, run, say, journey.is_cancelled.is_set)
            if journey.is_cancelled.is_set():
                raise CancelledError(STOPPED_BEFORE)
            say(f"Starting on {host.name} …")
            start_there()
            _note(run, start, "starting")
            self.mirror(run, start)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                # Half of it is no use; the next start brings all of it again.
                self._ssh.ask(host, f"rm -rf -- {shlex.quote(start.run_dir)}\n")
            is_stopped = journey.is_cancelled.is_set()
            words = STOPPED_BEFORE if is_stopped else f"It could not be started: {explain(error)}."
            try:
                _note(run, start, "stopped" if is_stopped else "failed", words)
            except (OSError, ValueError) as failed:
                log.warning("that %s was not started could not be written: %s", run.run_id, explain(failed))
        finally:
            with self._lock:
                del self._journeys[start.tag]


def _note(run: RunDirectory, start: Start, state: events.State, error: str | None = None) -> None:
    """Write down that a run begins, or why it does not; not where another start has taken it."""
    lock = run.acquire_lock()
    try:
        recorded = status_file.read(run.status)
        if recorded is None or recorded.handle != start.handle:
            return
        status = Status(state=state, engine=recorded.engine, handle=start.handle)
        status = replace(status, last_seen_unix_s=now_unix_s())
        if error is not None:
            final_events.say(run, final_events.of_an_end(state, error, None, (), is_said=False))
            is_failed = state == "failed"
            status = replace(status, error=error if is_failed else None, ended_unix_s=now_unix_s())
        run.write_status(status)
    finally:
        os.close(lock)
