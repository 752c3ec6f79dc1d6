"""Which files this program believes, and how it keeps other users of the machine out of its own.

What is only shown may be anybody's: a copied run opens here. What makes this program act (locks, tickets,
commands, the queue, accounts, caches) is believed only where this user or root owns it, and is made so that
no other user can open it: whoever may open a file for reading may also lock it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainers.files.plain_files import REPOSITORY, descriptor_of_plain

log = logging.getLogger(__name__)

COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"

_OTHERS = 0o077
# A folder of runs is shared on purpose where it hands its group on and lets it in: chmod g+rxs.
_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


class ForeignFileError(ValueError):
    """A file that would be believed belongs to another user; says which, and whose it is."""


def is_ours(about: os.stat_result) -> bool:
    """Tell whether this user or root owns a file: nobody else can have written it, or put it there."""
    return about.st_uid in (0, os.geteuid())


def require_ours(path: Path, about: os.stat_result | None = None) -> None:
    """Refuse what another user owns.

    Args:
        about: of the file that is open; without it, of what lies at the path itself, link or not.

    Raises:
        ForeignFileError: naming the file and its owner.
        OSError: if it cannot be looked at.
    """
    about = path.lstat() if about is None else about
    if not is_ours(about):
        raise ForeignFileError(
            f"{path} belongs to {_name(about.st_uid)} and not to {_name(os.geteuid())}, so it is not used: "
            "remove it, or copy it to make it yours"
        )


def open_own(path: Path) -> BinaryIO:
    """Open a file for reading; no link or pipe, and nobody else's.

    Raises:
        ForeignFileError: if another user owns it.
        OSError: if it cannot be opened.
        ValueError: if it is no plain file.
    """
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a plain file that is not another user's, as `os.open` does.

    Raises:
        ForeignFileError: if another user owns it.
        OSError: if it cannot be opened; a link is a loop then.
        ValueError: if it is no plain file.
    """
    try:
        descriptor = descriptor_of_plain(path, flags, mode)
    except PermissionError:
        require_ours(path)  # says whose it is
        raise
    try:
        require_ours(path, os.fstat(descriptor))
    except ForeignFileError:
        os.close(descriptor)
        raise
    return descriptor


def open_lock(path: Path) -> int:
    """Open a file to lock it; made here or earlier, no other user can open it from now on.

    Raises:
        ForeignFileError: if another user owns it: he could hold it for ever.
        OSError: if it cannot be opened.
        ValueError: if it is no plain file.
    """
    descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT)
    shut_out_others(descriptor)
    return descriptor


def renew_lock(path: Path) -> None:
    """Remove a lock that another user can open or has made, and so may hold; the next one is ours alone."""
    with contextlib.suppress(OSError):
        about = path.lstat()
        if not is_ours(about) or stat.S_IMODE(about.st_mode) & _OTHERS:
            path.unlink()


def shut_out_others(file: Path | int, keep: int = 0) -> bool:
    """Take away other users' rights to a file or folder of this user; tell whether they had any.

    Args:
        keep: rights of the group that stay.
    """
    about = os.stat(file)  # noqa: PTH116 - or an open one
    wide = stat.S_IMODE(about.st_mode) & _OTHERS & ~keep
    if not wide or about.st_uid != os.geteuid():
        return False
    with contextlib.suppress(OSError):  # a file system without rights
        os.chmod(file, stat.S_IMODE(about.st_mode) & ~wide)  # noqa: PTH101
        return True
    return False


def make_folder(path: Path) -> Path:
    """Make a folder that no other user may enter; close one that is there.

    Raises:
        ForeignFileError: if another user owns it, or made it a link.
        OSError: if it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    require_ours(path)
    about = path.stat()
    require_ours(path, about)
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if shut_out_others(path):
        log.warning("%s was open to other users of this machine; it is closed to them now", path)
    return path


def cache_folder(name: str = "") -> Path | None:
    """Return a folder for what can be made again: in the checkout, or where the user keeps such things.

    None where neither can be written to. Never in a temporary folder: its names can be foreseen there.
    """
    for place in _cache_places():
        try:
            folder = make_folder(place / name) if name and make_folder(place) else make_folder(place)
        except (OSError, ForeignFileError):
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


def _cache_places() -> Iterator[Path]:
    yield REPOSITORY / ".cache"
    wanted = os.environ.get("XDG_CACHE_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home
        at_home = Path(wanted) if os.path.isabs(wanted) else Path.home() / ".cache"  # noqa: PTH117
        # Each checkout has its own.
        yield at_home / f"ddp-{hashlib.sha256(os.fsencode(REPOSITORY)).hexdigest()[:12]}"


def begin(runs_dir: Path | None = None) -> None:
    """Let what this process and its children write be this user's alone; call it first.

    Args:
        runs_dir: where its runs lie; where that folder is shared on purpose, its group may read them.
    """
    os.umask(_OTHERS if runs_dir is None else 0o777 & ~run_mode(runs_dir))
    # torch would compile into a folder of a name that anybody can foresee, and run what it finds there.
    kept = os.environ.get(COMPILER_CACHE)
    try:
        if kept is not None and Path(kept).exists():
            require_ours(Path(kept), Path(kept).stat())
    except (ForeignFileError, OSError) as error:
        log.warning("%s is not used: %s", COMPILER_CACHE, error)
        kept = None
    if kept is None:
        os.environ[COMPILER_CACHE] = str(cache_folder("inductor") or tempfile.mkdtemp(prefix="inductor-"))


def close_runs(runs_dir: Path) -> None:
    """Make the folder of the runs; close runs of this user in it that other users could enter.

    Raises:
        OSError: if it cannot be made.
    """
    runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(about := runs_dir.stat()):
        owner = _name(about.st_uid)
        log.warning("%s belongs to %s, who can rename and remove every run in it", runs_dir, owner)
    keep = run_mode(runs_dir)
    num_closed = 0
    with os.scandir(runs_dir) as entries:
        for entry in entries:
            # Only what is a run: somebody may have named a folder that holds other things as well.
            if (
                entry.is_dir(follow_symlinks=False)
                and entry.stat().st_mode & _OTHERS & ~keep
                and Path(entry, "config.json").is_file()
            ):
                num_closed += shut_out_others(Path(entry), keep)
    if num_closed:
        log.warning(
            "%d runs in %s were open to other users of this machine; they are closed to them now "
            "(docs/files.md says how to share them)",
            num_closed,
            runs_dir,
        )


def is_locked_by_sight(path: Path) -> bool:
    """Tell from the system's list (Linux) whether somebody holds a lock that this user may not open."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and "WRITE" in line and f":{inode} " in line for line in lines)


def run_mode(runs_dir: Path) -> int:
    """Return the rights of a run's folder: its owner's alone, or also its group's to read it."""
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
