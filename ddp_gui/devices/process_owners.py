"""Which run a process belongs to, found by the run's directory on its command line or its parents'.

Ranks, whose title replaces the command line, and former warm workers are found by their output: it goes into
the run's logs.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from trainers.contract.run_ids import is_run_id
from trainers.machine import process_title, processes
from trainers.machine.processes import ProcessFacts

OURS = "trainers."
LOGS = "logs"
# Between fork and exec a process still has its parent's command line.
SETTLED_AFTER_S = 5.0
MAX_PARENTS = 50


class Owners:
    """Looks up the runs of processes and caches what cannot change, so that looking up all is cheap."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir.resolve()
        self._known: dict[int, tuple[float, str | None]] = {}
        self._lock = threading.Lock()

    def run_of(self, pid: int) -> str | None:
        """Return the id of the run that a process belongs to; None if it belongs to none."""
        for _ in range(MAX_PARENTS):
            facts = processes.inspect(pid)
            if facts is None or pid <= 1:
                return None
            run_id = self._run_named_by(facts)
            if run_id is not None:
                return run_id
            pid = facts.parent_pid
        return None

    def live_runs(self) -> dict[str, list[int]]:
        """Return the processes of every live run here, by the run's id."""
        pids = set(processes.all_pids())
        found: dict[str, list[int]] = {}
        with self._lock:
            self._known = {pid: known for pid, known in self._known.items() if pid in pids}
            for pid in sorted(pids):
                run_id = self._remembered_run_of(pid)
                if run_id is not None:
                    found.setdefault(run_id, []).append(pid)
        return found

    def _remembered_run_of(self, pid: int) -> str | None:
        known = self._known.get(pid)
        if known is not None and known[1] is None:
            return None
        facts = processes.inspect(pid)
        if facts is None:
            return None
        if known is not None and known[0] == facts.started_unix_s:
            return known[1]
        run_id = self.run_of(pid)
        # Warm workers belong to no run yet.
        is_settled = time.time() - facts.started_unix_s > SETTLED_AFTER_S and not _is_ours(facts)
        if run_id is not None or is_settled:
            self._known[pid] = (facts.started_unix_s, run_id)
        return run_id

    def _run_named_by(self, facts: ProcessFacts) -> str | None:
        """Return the run whose directory is an argument of one of our programs, or holds its output."""
        if not _is_ours(facts):
            return None
        base = Path(facts.working_directory or "/")
        for word in facts.command_line[1:]:
            path = Path(base, word)
            if is_run_id(path.name) and path.parent.resolve() == self._runs_dir:
                return path.name
        output = processes.output_of(facts.pid)
        if output is not None and output.parent.name == LOGS and output.parents[2] == self._runs_dir:
            return output.parents[1].name
        return None


def _is_ours(facts: ProcessFacts) -> bool:
    words = facts.command_line
    return process_title.title_of(words) is not None or any(word.startswith(OURS) for word in words)
