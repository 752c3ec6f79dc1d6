"""Stored state of the queue: order, limits and recent usage. The tickets are in the runs' folders.

The state is one file, `RUNS_DIR/.class/queue.json`. The page that holds `queue.lock` replaces it atomically.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from ddp_gui.queue.policy import Rules, UsagePeriod
from trainers.files import json_files, private_files, typed
from trainers.machine.os_errors import explain

FOLDER = ".class"
LOCK_TIMEOUT_S = 10.0
LOCK_POLL_S = 0.005


class QueueStoreError(ValueError):
    """The queue cannot be read or changed at the moment; the message gives the reason."""

    http_status = 503


@dataclass
class QueueState:
    """The stored state of the queue.

    Attributes:
        first: runs that a teacher moved to the head.
        waiting: runs that have a ticket.
        running: runs started from the queue that were live at the last snapshot.
        ended: usage of GPUs and CPU ranks within the last hour.
    """

    schema_version: Literal[1] = 1
    is_paused: bool = False
    first: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    ended: list[UsagePeriod] = field(default_factory=list)
    limits: Rules = field(default_factory=Rules)


class QueueStore:
    """Gives one writer at a time access to the state, across threads and processes."""

    def __init__(self, runs_dir: Path) -> None:
        self._folder = runs_dir / FOLDER
        self._path = self._folder / "queue.json"
        self._lock_path = self._folder / "queue.lock"
        private_files.renew_lock(self._lock_path)
        self._mutex = threading.Lock()

    def read(self) -> QueueState:
        """Return the current state, without taking the lock.

        Raises:
            QueueStoreError: if the stored queue is invalid.
        """
        try:
            raw = json_files.read_json(self._path, must_be_ours=True)
            return typed.read(QueueState, raw, ignores_unknown=True)
        except FileNotFoundError:
            return QueueState()
        except (OSError, ValueError) as error:
            raise QueueStoreError(
                f"{self._path} cannot be read ({explain(error)}). Delete this file: queued runs stay "
                "queued, but limits and order are lost"
            ) from error

    @contextlib.contextmanager
    def open(self) -> Iterator[QueueState]:
        """Lock the state and yield it for changes; write it at the end of the block if it has changed.

        Raises:
            QueueStoreError: if another page holds the lock for too long, or the stored queue is invalid.
            OSError: if it cannot be written.
        """
        with self._mutex, self._hold_lock():
            state = self.read()
            before = asdict(state)
            yield state
            after = asdict(state)
            if after != before:
                json_files.write_json_atomically(self._path, after, mode=0o600)

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        try:
            private_files.make_folder(self._folder)
            descriptor = private_files.open_lock(self._lock_path)
        except ValueError as error:
            raise QueueStoreError(str(error)) from error
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not _try_to_lock(descriptor):
                if time.monotonic() > deadline:
                    raise QueueStoreError(
                        "another page serves the queue of these runs and does not respond: stop that page"
                    )
                time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
