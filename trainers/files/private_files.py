"""Defines which files this program trusts, and protects its files from other users of the machine.

Files that are only displayed may belong to any user, so copied runs can be opened. Files that control this
program (locks, tickets, commands, the queue, accounts, caches) are trusted only if this user or root owns
them. They are created so that no other user can open them, because a user who can read a file can also lock
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainers.files import installation
from trainers.files.plain_files import REPOSITORY, descriptor_of_plain
from trainers.machine import facilities

log = logging.getLogger(__name__)

COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"

_OTHERS = 0o077
_LOCK_POLL_S = 0.005
# Mode of a runs directory that is shared on purpose: setgid, and readable by the group (chmod g+rxs).
_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


class ForeignFileError(ValueError):
    """A file that must be trusted belongs to another user; the message names both."""


def is_ours(status: os.stat_result) -> bool:
    """Return True if this user or root owns a file, so that no other user has written or created it."""
    return status.st_uid in (0, os.geteuid())


def require_ours(path: Path, status: os.stat_result | None = None) -> None:
    """Refuse a file that another user owns.

    Args:
        status: attributes of the open file; None: those of the path, without following a link.
    Raises:
        ForeignFileError: naming the file and its owner.
        OSError: if its attributes cannot be read.
    """
    status = path.lstat() if status is None else status
    if not is_ours(status):
        raise ForeignFileError(
            f"{path} is not used, because it belongs to {_name(status.st_uid)} and not to "
            f"{_name(os.geteuid())}: remove it, or replace it by your own copy"
        )


def open_own(path: Path) -> BinaryIO:
    """Open a regular file for reading if this user or root owns it.

    Raises:
        ForeignFileError: if another user owns it.
        OSError: if it cannot be opened.
        ValueError: if it is not a regular file.
    """
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a regular file like `os.open` if this user or root owns it.

    Raises:
        ForeignFileError: if another user owns it.
        OSError: if it cannot be opened; ELOOP for a link.
        ValueError: if it is not a regular file.
    """
    try:
        descriptor = descriptor_of_plain(path, flags, mode)
    except PermissionError:
        require_ours(path)  # raises an error with the owner's name
        raise
    try:
        require_ours(path, os.fstat(descriptor))
    except ForeignFileError:
        os.close(descriptor)
        raise
    return descriptor


def open_lock(path: Path) -> int:
    """Open a file to lock it, create it if it is missing, and prevent other users from opening it.

    Raises:
        ForeignFileError: if another user owns the file, and so could hold the lock forever.
        OSError: if it cannot be opened.
        ValueError: if it is not a regular file.
    """
    descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT)
    make_private(descriptor)
    return descriptor


def lock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file; return False if other processes hold its lock for longer than this.

    Raises:
        OSError: if the file system has no locks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL_S)


def is_locked(path: Path, folder: Path | None = None) -> bool:
    """Return True if a process holds the lock of a file; False if the file is missing or invalid.

    Args:
        folder: the lock counts only if root or the owner of this folder created it.
    """
    try:
        with os.fdopen(descriptor_of_plain(path, os.O_RDONLY), "rb") as file:
            if folder is not None and os.fstat(file.fileno()).st_uid not in (0, folder.stat().st_uid):
                return False
            make_private(file.fileno())
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except PermissionError:
        return is_lock_listed(path)  # a lock of another user who allows this user to read the folder
    except (OSError, ValueError):
        return False
    return False


def renew_lock(path: Path) -> None:
    """Remove a lock file that another user may hold, so that the next one will be private."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if not is_ours(status) or stat.S_IMODE(status.st_mode) & _OTHERS:
            path.unlink()


def make_private(file: Path | int, keep: int = 0) -> bool:
    """Remove other users' rights to a file or folder of this user; return True if they had any.

    Args:
        keep: rights of the group to keep.
    """
    status = os.stat(file)  # noqa: PTH116 - or an open one
    wide = stat.S_IMODE(status.st_mode) & _OTHERS & ~keep
    if not wide or status.st_uid != os.geteuid():
        return False
    with contextlib.suppress(OSError):  # the file system has no permissions
        os.chmod(file, stat.S_IMODE(status.st_mode) & ~wide)  # noqa: PTH101
        return True
    return False


def make_folder(path: Path) -> Path:
    """Create a folder that no other user may enter; if it exists, remove the rights of other users.

    Raises:
        ForeignFileError: if another user owns the folder, or has replaced it by a link.
        OSError: if it cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    require_ours(path)
    status = path.stat()
    require_ours(path, status)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if make_private(path):
        log.warning("other users of this machine could access %s; its permissions are now corrected", path)
    return path


def cache_folder(name: str = "") -> Path | None:
    """Return a folder for caches: in the checkout, or in the user's cache directory.

    None if neither is writable. Never a temporary folder, because its names are predictable.
    """
    for folder_path in _cache_candidates():
        try:
            folder = (
                make_folder(folder_path / name)
                if name and make_folder(folder_path)
                else make_folder(folder_path)
            )
        except (OSError, ForeignFileError):
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def _cache_candidates() -> Iterator[Path]:
    if not installation.is_installed():
        yield REPOSITORY / ".cache"
    with contextlib.suppress(ValueError):  # the user has no home directory
        # Each checkout has a separate folder.
        yield installation.cache_root() / f"ddp-{hashlib.sha256(os.fsencode(REPOSITORY)).hexdigest()[:12]}"


def begin(runs_dir: Path | None = None) -> None:
    """Make files that this process and its children create private. Must be called before other code creates
    files.

    Args:
        runs_dir: the runs directory. If it is shared on purpose, its group may read the files.
    """
    os.umask(_OTHERS if runs_dir is None else 0o777 & ~run_mode(runs_dir))
    # Set torch's cache folder: the default has a predictable name, and torch executes files in it.
    cache_path = os.environ.get(COMPILER_CACHE)
    try:
        if cache_path is not None and Path(cache_path).exists():
            require_ours(Path(cache_path), Path(cache_path).stat())
    except (ForeignFileError, OSError) as error:
        log.warning("%s is not used: %s", COMPILER_CACHE, error)
        cache_path = None
    if cache_path is None:
        os.environ[COMPILER_CACHE] = str(cache_folder("inductor") or tempfile.mkdtemp(prefix="inductor-"))


def close_runs(runs_dir: Path) -> None:
    """Create the runs directory, and remove the rights of other users to this user's runs.

    Raises:
        OSError: if it cannot be created.
    """
    runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(status := runs_dir.stat()):
        owner = _name(status.st_uid)
        log.warning("%s belongs to %s, who can rename and remove every run in it", runs_dir, owner)
    keep = run_mode(runs_dir)
    num_closed = 0
    with os.scandir(runs_dir) as entries:
        for entry in entries:
            # Change only runs, because the user may have chosen a folder with other content.
            if (
                entry.is_dir(follow_symlinks=False)
                and entry.stat().st_mode & _OTHERS & ~keep
                and Path(entry, "config.json").is_file()
            ):
                num_closed += make_private(Path(entry), keep)
    if num_closed:
        log.warning(
            "other users of this machine could access %d runs in %s; their permissions are now corrected "
            "(docs/files.md explains how to share runs)",
            num_closed,
            runs_dir,
        )


def is_lock_listed(path: Path) -> bool:
    """Return True if the system lists a lock (Linux), for a file that this user may not open."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return False
    lines = (facilities.read("/proc/locks") or "").splitlines()
    return any("FLOCK" in line and "WRITE" in line and f":{inode} " in line for line in lines)


def plugins(runs_dir: Path, chosen: Path | None = None) -> Path | None:
    """Return the folder of the user's plug-ins; None if none is named and none is next to the runs.

    Raises:
        ValueError: if the named folder does not exist, or another user can change a file in it.
    """
    folder_path = chosen or runs_dir.resolve().parent / "plugins"
    folder = folder_path.resolve()
    if not folder.is_dir():
        if chosen is None:
            return None
        raise ValueError(f"there is no folder {folder}")
    # Also check the link itself, because its owner determines the code that runs.
    for path in (folder_path, folder, *folder.glob("*"), *folder.glob("*/*")):
        require_ours(path)
        require_ours(path, status := path.stat())
        if status.st_mode & stat.S_IWOTH:
            raise ValueError(f"every user of this machine can change {path}: chmod o-w {path}")
    return folder


def run_mode(runs_dir: Path) -> int:
    """Return the mode of a run's folder: private, or also readable by its group."""
    try:
        is_shared = runs_dir.stat().st_mode & _SHARED == _SHARED
    except OSError:
        is_shared = False
    return 0o750 if is_shared else 0o700


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
