"""A file in memory for the processes of one job: whoever may not look into its owner cannot open it.

It has no name on any disk, and is gone with the last process that holds it, however that ends. Linux opens
`/proc/PID/fd/N` only for the same user (man 5 proc; `PTRACE_MODE_READ`). Elsewhere it is a file that only its
owner can open, with a name that cannot be guessed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile


class MemoryFile:
    """The owner's side; others open its `address` as long as this process lives."""

    def __init__(self, name: str, size_bytes: int = 0) -> None:
        self._path: str | None = None
        if is_in_memory():
            self._fd = os.memfd_create(name)
        else:
            self._fd, self._path = tempfile.mkstemp(prefix=f"{name}-")
        os.ftruncate(self._fd, size_bytes)
        self._size_bytes = size_bytes

    @property
    def address(self) -> str:
        """The path by which processes of the same user open it."""
        return self._path or f"/proc/{os.getpid()}/fd/{self._fd}"

    def map(self) -> mmap.mmap:
        """Return its content, to be read and written."""
        return mmap.mmap(self._fd, self._size_bytes)

    def close(self) -> None:
        """Give it up; who has mapped it keeps what they have."""
        with contextlib.suppress(OSError):  # closed before
            os.close(self._fd)
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # noqa: PTH108 - one call, no object


def map_file(address: str) -> mmap.mmap:
    """Return the content of another process's file, to be read and written.

    Raises:
        OSError: when there is none, or it may not be opened.
    """
    fd = os.open(address, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def is_in_memory() -> bool:
    """Tell whether this system has such files: Linux does."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")  # noqa: PTH112
