"""Notices that a run's directory has gone: deleted, moved, or its disk taken away."""

from __future__ import annotations

import time

from trainers.contract.rundir import RunDirectory

POLL_EVERY_S = 0.5


class RundirWatch:
    """The directory a run lives in, as it was when the run was started.

    Without its configuration it is none any more: deleted while it is written to, a part may be left.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._identity = self._read_identity()
        self._polled_at = time.monotonic()
        self._was_gone = False

    def is_gone(self) -> bool:
        """Tell whether two looks in a row, half a second apart, found another directory or none."""
        now = time.monotonic()
        if now - self._polled_at < POLL_EVERY_S:
            return False
        self._polled_at = now
        was_gone, self._was_gone = self._was_gone, self._read_identity() != self._identity
        return was_gone and self._was_gone

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            about = self._run.path.stat()
            self._run.config.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return self._identity  # a network that does not answer may do so again
        return about.st_dev, about.st_ino
