"""The folder in which a check works, beside the runs: on their disk, and in no list of runs.

Who holds the lock beside it checks now. What a killed check left there is removed by the next one.
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
    """Keep other checks of these runs away.

    Raises:
        ValueError: when another check is going on, or the folder is another user's.
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
    """Give an empty folder to work in, and leave nothing of it; who calls is `alone`.

    Raises:
        OSError: when it cannot be made.
    """
    plain_files.remove(files.work)
    files.work.mkdir(mode=0o700)
    try:
        yield files.work
    finally:
        plain_files.remove(files.work)
