"""Files that another machine writes, as they are now and not as NFS remembers them.

A client of NFS remembers for 3 to 60 s what a file was, and also that a name was not there (nfs(5)). It asks
its server when something is opened: a file for its own sake, a folder for the names in it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def ask_anew(folder: Path) -> None:
    """Have the system forget which names were not in a folder; nothing happens where there is none."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def stat_anew(path: Path) -> os.stat_result:
    """Return what a file is now.

    Raises:
        FileNotFoundError: when it is not there.
        OSError: when it cannot be opened; a link is a loop then.
    """
    try:
        return _opened(path)
    except FileNotFoundError:
        ask_anew(path.parent)
        return _opened(path)


def _opened(path: Path) -> os.stat_result:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
