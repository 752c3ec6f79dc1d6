"""Facilities of Linux that other systems lack; the only module that uses them.

On systems without the facility, each function returns None, False or an empty value, for which each caller
has an alternative. `RANKSCOPE_WITHOUT_LINUX=1` turns all facilities off in this process and its children, so
that tests on Linux can cover the alternatives. This module needs neither torch nor psutil.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

WITHOUT = "RANKSCOPE_WITHOUT_LINUX"
_OWN_DESCRIPTORS = "/proc/self/fd"


def are_available() -> bool:
    """Return True on Linux, unless the environment turns its facilities off."""
    return sys.platform.startswith("linux") and os.environ.get(WITHOUT, "") in ("", "0")


def read(path: str | Path) -> str | None:
    """Return the text of a file of /proc or /sys; None if it is absent, hidden, or its process has ended.

    Bytes that are not UTF-8, as in names of programs, become surrogates.
    """
    if not are_available():
        return None
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


def write(path: str, text: str) -> bool:
    """Write into a file of /proc; return False if that is not possible."""
    if not are_available():
        return False
    try:
        Path(path).write_text(text, encoding="ascii")
    except OSError:
        return False
    return True


def read_link(path: str | Path) -> str | None:
    """Return the target of a link in /proc; None if it is absent or hidden."""
    if not are_available():
        return None
    try:
        return os.readlink(path)  # noqa: PTH115 - the target may be no path
    except OSError:
        return None


def names_in(folder: str | Path) -> list[str]:
    """Return the names in a folder of /proc or /sys; none if it is absent, hidden, or its process has ended.

    `Path.glob` raises if the folder disappears meanwhile (until Python 3.13), which happens in a polling
    loop.
    """
    if not are_available():
        return []
    try:
        return os.listdir(folder)
    except OSError:
        return []


def existing(*paths: Path) -> tuple[Path, ...]:
    """Return those files and folders of /proc, /sys and /dev that exist."""
    return tuple(path for path in paths if path.exists()) if are_available() else ()


def resident_bytes() -> int:
    """Return this process's resident memory; without /proc, the largest so far."""
    sizes = read("/proc/self/statm")
    return peak_memory_bytes() if sizes is None else int(sizes.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_memory_bytes() -> int:
    """Return this process's largest resident memory so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def prctl(option: int, value: int | bytes) -> bool:
    """Set an attribute of this process (`man 2 prctl`); return False if that is not possible."""
    return are_available() and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


def has_memory_files() -> bool:
    """Return True if the system has in-memory files, which other processes open by `path_of_descriptor`."""
    return are_available() and hasattr(os, "memfd_create") and os.path.isdir(_OWN_DESCRIPTORS)  # noqa: PTH112


def make_memory_file(name: str) -> int:
    """Return the descriptor of a new in-memory file."""
    return os.memfd_create(name)


def path_of_descriptor(descriptor: int) -> str:
    """Return the path by which processes of this user open a file or pipe, while this process lives."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def owner_of_path(path: str) -> int | None:
    """Return the process id in a path of `path_of_descriptor`; None for any other path."""
    parts = path.split("/")
    return int(parts[2]) if parts[:2] == ["", "proc"] and parts[3:4] == ["fd"] else None


def own_descriptors() -> list[int]:
    """Return the open file descriptors of this process."""
    return [int(name) for name in names_in(_OWN_DESCRIPTORS)]


def cores() -> set[int] | None:
    """Return the CPU cores that this process may use; None if the system does not restrict them."""
    return os.sched_getaffinity(0) if are_available() else None


def netlink(protocol: int) -> socket.socket:
    """Return a socket to the kernel.

    Raises:
        OSError: if that is not possible.
    """
    if not are_available():
        raise OSError("this system has no netlink sockets")
    import socket  # only the page needs it; every program starts with this module

    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
