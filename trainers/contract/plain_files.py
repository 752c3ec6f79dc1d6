"""Files of a run are plain files: a link in a copied run would show a file of this machine as the run's."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading, if it is one: no link, no pipe that waits for a writer.

    Raises:
        OSError: when it cannot be opened; a link is a loop then.
        ValueError: when it is no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is no plain file")
    return os.fdopen(descriptor, "rb")


def refuse_links(folder: Path) -> None:
    """Refuse a run's folder that is a link, or has anything but plain files and folders directly in it.

    Raises:
        ValueError: naming what is there.
        OSError: when the folder cannot be looked at.
    """
    if folder.is_symlink():
        raise ValueError(f"run {folder.name} is a link, and links are not followed: copy the folder itself")
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a file that was aside a moment ago
                mode = entry.stat(follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ValueError(
                        f"run {folder.name} cannot be opened: {entry.name[:80]} in it is no plain file, and "
                        "links are not followed: copy the file itself"
                    )
