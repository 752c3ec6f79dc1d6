"""The work folder of a check, next to the runs directory, so that it is on the same disk but not in the list
of runs.

The running check holds a lock next to this folder. The next check removes the leftovers of a killed check.
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
def exclusive_lock(files: CheckFiles) -> Iterator[None]:
    """Hold the lock that excludes other checks of this runs directory.

    Raises:
        ValueError: If another check is running, or the folder belongs to another user.
        OSError: If the folder cannot be created.
    """
    private_files.make_folder(files.folder)
    lock = private_files.open_lock(files.lock)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                "a check of this machine is already running: wait until it ends, or cancel it"
            ) from None
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def work_folder(files: CheckFiles) -> Iterator[Path]:
    """Yield an empty work folder and remove it afterwards. Requires the lock of `exclusive_lock`.

    Raises:
        OSError: If it cannot be created.
    """
    plain_files.remove(files.work)
    files.work.mkdir(mode=0o700)
    try:
        yield files.work
    finally:
        plain_files.remove(files.work)
