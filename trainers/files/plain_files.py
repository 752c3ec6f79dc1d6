"""Files and folders: attributes, fingerprints, safe opening."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import mmap
import os
import select
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trainers.machine import os_errors

if TYPE_CHECKING:
    import socket

REPOSITORY = Path(__file__).resolve().parents[2]
ASSETS = REPOSITORY / "assets"
# Environment variable with the user's folder of plug-ins, which all processes of the program inherit.
PLUGINS_VARIABLE = "DDP_PLUGINS"

FileStat = tuple[int, int, int]
FileStats = tuple[FileStat | None, ...]

# Files of a run to check. The folder's time changes if a file in it is replaced, such as the status, the
# notes or the configuration of a resumed run.
WATCHED = ("config.json", "", "events.jsonl")
# Minimum age of a reliable timestamp: two changes in quick succession may have the same one.
SETTLED_AFTER_S = 2.0


def is_readable(source: int | socket.socket | IO[Any], timeout_s: float = 0.0) -> bool:
    """Return True if a socket or pipe has data or has ended, within a time.

    Unlike `select.select`, it supports descriptors above 1023.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def stats_of(path: str) -> FileStats:
    """Return the marks (see `stat_of`) of a run's configuration, folder and events."""
    return tuple(stat_of(f"{path}/{name}") for name in WATCHED)


def stat_of(path: str) -> FileStat | None:
    """Return a mark (inode, size, mtime) that changes with the file, or None if it is missing or hidden."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of files: avoid a Path for each
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def are_settled(marks: FileStats) -> bool:
    """Return True if the timestamps are old enough that any later change will change these marks."""
    newest_ns = max(mark[2] for mark in marks if mark is not None)
    return time.time_ns() - newest_ns > SETTLED_AFTER_S * 1e9


def settled_stat_of(path: str) -> FileStat | None:
    """Return the mark of a folder, or None if it changed too recently to be reliable."""
    mark = stat_of(path)
    return mark if mark is not None and are_settled((mark,)) else None


def own_plugins() -> Path | None:
    """Return the user's folder of plug-ins, or None."""
    folder_name = os.environ.get(PLUGINS_VARIABLE, "")
    return Path(folder_name) if folder_name else None


def fingerprint_of_code(watched: Iterable[Path] = ()) -> str:
    """Return a hash of path, time and size of all files of the training code and of `watched`."""
    files = [*(REPOSITORY / "trainers").rglob("*.py"), *(REPOSITORY / "assets" / "data").rglob("*"), *watched]
    if (plugin_folder := own_plugins()) is not None:
        files += plugin_folder.rglob("*.py")
    digest = hashlib.sha256(sys.executable.encode())
    for path in sorted(set(files)):
        try:
            status = path.stat()
            digest.update(f"{path}:{status.st_mtime_ns}:{status.st_size}\n".encode())
        except OSError:
            digest.update(f"{path}:absent\n".encode())
    return digest.hexdigest()


# Suffixes that folders of a run never have.
FILE_SUFFIXES = (".json", ".jsonl", ".lock")


def open_plain(path: Path) -> BufferedReader:
    """Open a regular file for reading; refuses links, and pipes that wait for a writer.

    Raises:
        OSError: if it cannot be opened; ELOOP for a link.
        ValueError: if it is not a regular file.
    """
    return os.fdopen(descriptor_of_plain(path, os.O_RDONLY), "rb")


def descriptor_of_plain(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open a regular file like `os.open`, without ever waiting for the other end of a pipe.

    Raises:
        OSError: if it cannot be opened; ELOOP for a link.
        ValueError: if it is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is not a regular file")
    return descriptor


def map_file(address: str) -> mmap.mmap:
    """Return the content of another process's file as a writable mapping.

    Raises:
        OSError: if it does not exist or may not be opened.
    """
    descriptor = os.open(address, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def open_to_append(path: Path) -> int:
    """Open a regular file for appending, create it if it is missing, and return its descriptor.

    Raises:
        OSError: if it cannot be opened; ELOOP for a link, ENXIO for a pipe without a reader.
        ValueError: if it is not a regular file.
    """
    return descriptor_of_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def redirect_output(log: Path) -> None:
    """Append stdout and stderr of this process, including output of C++ code, to a file."""
    log.parent.mkdir(exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = open_to_append(log)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os_errors.keep_going_without_log()


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a temporary folder, and remove it at the end. The folder is locked while in use. Before, folders
    with this prefix that killed processes have left are removed.
    """
    for leftover in Path(tempfile.gettempdir()).glob(f"{glob.escape(prefix)}*"):
        # the folder is in use, belongs to another user, or was just removed
        with contextlib.suppress(OSError):
            if leftover.is_symlink() or leftover.stat().st_uid != os.geteuid():
                continue
            descriptor = _lock(leftover, fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
            os.close(descriptor)
    with contextlib.ExitStack() as at_end:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix))
            try:
                descriptor = _lock(folder)
            except FileNotFoundError:
                continue
            except OSError:  # the file system has no locks, so nothing was removed above
                break
            if folder.exists():  # else another process has removed it before the lock
                at_end.callback(os.close, descriptor)
                break
            os.close(descriptor)
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _lock(folder: Path, flags: int = 0) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_links(folder: Path) -> None:
    """Refuse a run's folder that is a link, or contains anything but regular files and folders.

    A folder with the suffix of a file is refused, too.

    Raises:
        ValueError: naming the entry.
        OSError: if the folder cannot be read.
    """
    if folder.is_symlink():
        raise ValueError(
            f"run {folder.name} is a link, which this page does not follow: copy the folder itself"
        )
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a temporary file was just renamed
                mode = entry.stat(follow_symlinks=False).st_mode
                is_misnamed = stat.S_ISDIR(mode) and Path(entry.name).suffix in FILE_SUFFIXES
                if is_misnamed or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ValueError(
                        f"run {folder.name} cannot be opened, because {entry.name[:80]} in its folder is "
                        "not a regular file. Replace a link by a copy of the file"
                    )


def ask_anew(folder: Path) -> None:
    """Make the system refresh its cached listing of a folder. Does nothing if the folder does not exist."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def stat_uncached(path: Path) -> os.stat_result:
    """Return a file's current attributes, bypassing cached ones.

    Raises:
        FileNotFoundError: if it does not exist.
        OSError: if it cannot be opened; ELOOP for a link.
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
