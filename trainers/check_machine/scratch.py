"""The work folder of a check, beside the runs: on their disk, but not in the list of runs.

The lock beside it is held by the running check. The next check removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from trainers.contract.check_files import CheckFiles
from trainers.files import plain_files, private_files


@contextlib.contextmanager
def alone(files: CheckFiles) -> Iterator[None]:
    """Hold the lock that excludes other checks of this runs directory.

    Raises:
        ValueError: when another check is running, or the folder is another user's.
        OSError: when it cannot be made.
    """
    private_files.make_folder(files.folder)
    lock = private_files.open_lock(files.lock)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                "this machine is being checked already: wait for the end, or cancel it"
            ) from None
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def scratch(files: CheckFiles) -> Iterator[Path]:
    """Yield an empty work folder, and remove it afterwards; requires the lock of `alone`.

    Raises:
        OSError: when it cannot be made.
    """
    plain_files.remove(files.work)
    files.work.mkdir(mode=0o700)
    try:
        yield files.work
    finally:
        plain_files.remove(files.work)
