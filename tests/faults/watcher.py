"""A reader that polls a run continuously, as a page does. Events it has read must not change afterwards."""

from __future__ import annotations

import hashlib
import threading

from tests.faults import checks
from tests.faults.checks import Identity, Seen
from trainers.contract.rundir import RunDirectory

POLL_EVERY_S = 0.02
LOOK_AT_PROCESSES_EVERY = 25


class Watcher:
    """Reads a run's new complete lines and records its processes, in a thread, until it is closed."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._sum = hashlib.sha256()
        self._num_events = 0
        self._size_bytes = 0
        self._known: set[Identity] = set()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name=f"watch-{run.run_id}", daemon=True)
        self._thread.start()

    def seen(self) -> Seen:
        """Return the events read so far."""
        with self._lock:
            return Seen(
                num_events=self._num_events, size_bytes=self._size_bytes, sha256=self._sum.hexdigest()
            )

    def processes_left(self) -> set[Identity]:
        """Return every process that works or has worked on the run and is still alive."""
        return checks.processes_on(self._run) | checks.still_alive(set(self._known))

    def close(self) -> None:
        """Stop the thread and read a last time."""
        self._closing.set()
        self._thread.join()
        self._read()

    def _watch(self) -> None:
        looks = 0
        while not self._closing.wait(POLL_EVERY_S):
            self._read()
            if looks % LOOK_AT_PROCESSES_EVERY == 0:
                self._known |= checks.processes_on(self._run)
            looks += 1

    def _read(self) -> None:
        try:
            with self._run.events.open("rb") as file:
                file.seek(self._size_bytes)
                chunk = file.read()
        except OSError:
            return  # deleted or unmounted; lost events are counted at the end
        whole = chunk[: chunk.rfind(b"\n") + 1]
        with self._lock:
            self._sum.update(whole)
            self._num_events += whole.count(b"\n")
            self._size_bytes += len(whole)
