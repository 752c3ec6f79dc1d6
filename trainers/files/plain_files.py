"""Files of a run are plain files: a link in a copied run would show a file of this machine as the run's."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

# Folders of a run are called otherwise.
FILE_SUFFIXES = (".json", ".jsonl", ".lock")


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading, if it is one: no link, no pipe that waits for a writer.

    Raises:
        OSError: when it cannot be opened; a link is a loop then.
        ValueError: when it is no plain file.
    """
    return os.fdopen(descriptor_of_plain(path, os.O_RDONLY), "rb")


def descriptor_of_plain(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a file as `os.open` does, if it is one, and never wait for anybody at its other end.

    Raises:
        OSError: when it cannot be opened; a link is a loop then.
        ValueError: when it is no plain file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is no plain file")
    return descriptor


def open_to_append(path: Path) -> int:
    """Open a file for appending, made where it is not there; return its descriptor.

    Raises:
        OSError: when it cannot be opened; a link is a loop then, a pipe that nobody reads no device.
        ValueError: when it is no plain file.
    """
    return descriptor_of_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all in it, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def refuse_links(folder: Path) -> None:
    """Refuse a run's folder that is a link, or has anything but plain files and folders directly in it.

    A folder with a file's name counts as neither.

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
                is_misnamed = stat.S_ISDIR(mode) and Path(entry.name).suffix in FILE_SUFFIXES
                if is_misnamed or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ValueError(
                        f"run {folder.name} cannot be opened: {entry.name[:80]} in it is no plain file, and "
                        "links are not followed: copy the file itself"
                    )
