"""A folder for what `multiprocessing` of a run's ranks leaves in the system's temporary folder.

Loader workers hand tensors to their rank through sockets in a folder `pymp-*`. A rank that is killed does
not remove it, so the supervisor gives all ranks one folder, and removes it when they have ended. Its name is
short: the path of a socket has at most 107 bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.process
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "TRAINERS_TEMP"
_PREFIX = "ddp-ranks-"


@contextlib.contextmanager
def folder_for_ranks(num_workers: int) -> Iterator[None]:
    """Name a folder in this process's environment, for the ranks; remove it at the end.

    Runs without loader workers have none. A lock shows that the folder is in use: what a killed supervisor
    left is removed by the next one.
    """
    if num_workers == 0:
        yield
        return
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.environ[VARIABLE] = str(folder)
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def use_folder() -> None:
    """Have `multiprocessing` of this process, and of those that it forks, use the run's folder."""
    folder = os.environ.get(VARIABLE, "")
    if folder and os.path.isdir(folder):  # noqa: PTH112
        _configuration()["tempdir"] = tempfile.mkdtemp(prefix="r", dir=folder)


def remove_own() -> None:
    """Remove the folder of this process's `multiprocessing`, if it has made one: `os._exit` does not."""
    if (folder := _configuration().get("tempdir")) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _configuration() -> dict[str, str]:
    found: dict[str, str] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined] # noqa: SLF001
    return found


def _sweep() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            if left.is_symlink() or left.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)
