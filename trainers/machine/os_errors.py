"""Sentences for system errors: what happened, in which folder, and how to fix it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_SPACE_HINT = "delete runs that you no longer need and empty the bin"
_OPEN_FILES_HINT = "close pages that you do not need, or raise the limit (ulimit -n)"
# {path} is the file; {of} is " of FOLDER", or empty if the system does not name the file.
_SENTENCES = {
    errno.ENOSPC: f"the disk{{of}} is full: {_SPACE_HINT}",
    errno.EDQUOT: f"the disk quota{{of}} is used up: {_SPACE_HINT}",
    errno.EROFS: "the disk{of} is read-only: make it writable, or start the page with another --runs-dir",
    errno.EACCES: "{path} cannot be accessed, because this user has no permission: change its permissions "
    "(chmod) or its owner, or choose another folder",
    errno.EPERM: "{path} cannot be changed, because the system does not permit it: change its owner or "
    "attributes, or choose another folder",
    errno.EIO: "the disk{of} reports an input/output error: check the disk, or the connection to it",
    errno.ESTALE: "the file server no longer knows {path}: check that its folder is mounted",
    errno.ENAMETOOLONG: "the name of {path} is too long for this file system: choose a shorter one",
    errno.EMFILE: f"this program has too many open files: {_OPEN_FILES_HINT}",
    errno.ENFILE: "this machine has too many open files: end programs that you do not need",
    errno.ENOMEM: "this machine has no memory left: end programs that you do not need",
    errno.EFBIG: "{path} would exceed the file size limit of this file system or user (ulimit -f)",
    errno.ENOENT: "{path} does not exist",
    errno.EEXIST: "{path} already exists",
    errno.ENOTDIR: "{path} is not a folder, or a part of this path is not a folder",
    errno.EISDIR: "{path} is a folder, but a file is needed",
    errno.ELOOP: "{path} is a symbolic link, which this program does not follow",
}
_MAX_SHOWN = 200


def explain(error: BaseException) -> str:
    """Return a sentence without a full stop: what happened, in which folder, and how to fix it.

    Other errors, and an OSError without an errno, keep their messages.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    path = _path_of(error)
    reason = error.strerror or os.strerror(error.errno)
    if (sentence := _SENTENCES.get(error.errno)) is None:
        sentence = f"{reason[:1].lower()}{reason[1:]}"
        return sentence if path is None else f"{_shown(path)}: {sentence}"
    if path is None:
        return sentence.format(path="the file", of="")
    folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112 - `Path.is_dir` may raise itself
    return sentence.format(path=_shown(path), of=f" of {_shown(folder)}")


@contextlib.contextmanager
def about(path: Path) -> Iterator[None]:
    """Add the path to an OSError raised inside that names no file: `write` and `fsync` do not."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def _path_of(error: OSError) -> Path | None:
    """Return the file of an error; for a temporary file, the folder of its target."""
    if not isinstance(error.filename, str | bytes):
        return None
    path = Path(os.fsdecode(error.filename))
    return path.parent if path.name.startswith(".") and path.name.endswith(".tmp") else path


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


class _DroppingOutput(io.FileIO):
    """A log file that drops output if its disk is full or read-only."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in (*NO_SPACE, errno.EROFS, errno.EIO):
                raise
            return len(data)


def keep_going_without_log() -> None:
    """Make `print` and tracebacks of this process drop output that its log file cannot store.

    By default `print` raises on a full disk: a supervisor would end before writing the final status, and a
    rank would fail because of a log line.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        getattr(sys, name).flush()
        raw = _DroppingOutput(number, "w", closefd=False)
        setattr(
            sys,
            name,
            io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True),
        )
