"""Records the failure of runs whose first host is lost.

The first host writes the run's status, so no other process would record that this host is lost. A host is
lost if, for `SILENT_FOR_S`, it neither answers by SSH nor writes reports into the run's folder. One of these
signs alone may be a short network failure. When the host answers again, its remaining processes are killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trainers.contract import events
from trainers.contract import status as status_file
from trainers.contract.rundir import RunDirectory
from trainers.contract.status import Status
from trainers.engines.local import diagnosis
from trainers.engines.local.diagnosis import Cause
from trainers.engines.local.stopping import NODE_LOST
from trainers.engines.several_nodes.reports import NodesFolder
from trainers.engines.ssh.hosts import Hosts, SshStart
from trainers.machine import threads
from trainers.machine.environment import now_unix_s

log = logging.getLogger(__name__)

POLL_S = 1.0
# A launcher reports every second. Two signs must agree, so this limit is below `LOST_AFTER_S`.
SILENT_FOR_S = 15.0
HINT = "Check the power, network and sshd of this host. The run has ended on the other hosts."


class LostHosts:
    """Watches runs whose first host did not answer.

    Args:
        read_status: Returns a run's actual state.
        reap: Kills all processes of a start; returns the hosts where it failed, with the errors.
    """

    def __init__(
        self,
        hosts: Hosts,
        read_status: Callable[[RunDirectory], Status],
        reap: Callable[[SshStart], Mapping[str, object]],
    ) -> None:
        self._hosts = hosts
        self._read_status = read_status
        self._reap = reap
        self._recorded: set[str] = set()

    def watch(self, run: RunDirectory, start: SshStart) -> None:
        """Watch a run whose first host did not answer. Returns immediately."""
        threads.run_once(f"lost-{start.tag}", lambda: self._watch(run, start))

    def _watch(self, run: RunDirectory, start: SshStart) -> None:
        try:
            if self._is_lost(run, start):
                self._conclude(run, start)
                self._reap_when_back(start, start.hosts[:1])
        except (OSError, ValueError) as error:
            log.warning("cannot determine whether the first host of %s is lost: %s", run.run_id, error)

    def reap_when_back(self, start: SshStart, names: Sequence[str]) -> None:
        """Kill all processes of a start when these hosts answer again. Returns immediately."""
        threads.run_once(f"reap-{start.tag}", lambda: self._reap_when_back(start, names))

    def _reap_when_back(self, start: SshStart, names: Sequence[str]) -> None:
        waiting = set(names)
        while waiting:
            if any(self._hosts.has_start(name, start.tag) is not None for name in waiting):
                waiting &= self._reap(start).keys()
            if waiting:
                time.sleep(POLL_S)

    def _is_lost(self, run: RunDirectory, start: SshStart) -> bool:
        """Wait; return True if the host is lost, False if it answers or the run has ended."""
        folder = NodesFolder(run, start.tag)
        last_report, changed_at = folder.read("0"), time.monotonic()
        while self._hosts.has_start(start.hosts[0], start.tag) is None:
            report = folder.read("0")
            if report != last_report:
                last_report, changed_at = report, time.monotonic()
            if self._read_status(run).state not in events.LIVE_STATES:
                return False
            if time.monotonic() - changed_at > SILENT_FOR_S:
                return True
            time.sleep(POLL_S)
        return False

    def _conclude(self, run: RunDirectory, start: SshStart) -> None:
        """Write the run's final events and status in place of its first host."""
        with run.owned():
            recorded = status_file.read(run.status)
            if recorded is None or recorded.ended_unix_s is not None or recorded.handle != start.handle:
                return
            folder = NodesFolder(run, start.tag)
            if not folder.create_once("taken-over", {"node": None}):
                return  # another host has recorded the end
            try:
                self._write_end(run, start, recorded)
            except OSError:
                folder.remove("taken-over")  # otherwise no process would try again to write the end
                raise

    def _write_end(self, run: RunDirectory, start: SshStart, recorded: Status) -> None:
        name = start.hosts[0]
        message = f"Node 0 ({name}) is lost: it neither answers by SSH nor reports."
        hint = f"{HINT} {diagnosis.describe_latest_checkpoint(run, None)}"
        cause = Cause(code=NODE_LOST, message=message, hint=hint)
        # else the events were written before, and only the status was not
        if start.tag not in self._recorded:
            diagnosis.append_final_events(
                run, diagnosis.make_final_events("failed", message, cause, (), is_recorded=False)
            )
            self._recorded.add(start.tag)
        status = replace(recorded, state="failed", error=f"{message} {hint}")
        run.write_status(replace(status, ended_unix_s=now_unix_s()))
