"""Uploaded files: folders, limits and removal."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ddp_gui.auth.rights import PEOPLE, DataAccess, current_user, is_plain_path
from trainers.files import private_files

KINDS = (
    ".zip",
    ".csv",
    ".tsv",
    ".tab",
    ".data",
    ".parquet",
    ".jsonl",
    ".json",
    ".xlsx",
    ".xls",
    ".ods",
    ".txt",
)
MAX_BYTES = 2 * 1024**3
MAX_STORED_BYTES = 20 * 1024**3
# Limit per user with login, so that a few users cannot use up the space.
MAX_STORED_BYTES_PER_USER = 4 * 1024**3
# Minimum size that a file counts, because a million small files would also fill a disk.
MIN_COUNTED_BYTES = 1024**2
RESERVED_BYTES = 1024**3
FORGOTTEN_AFTER_S = 3600.0
_INCOMING = ".incoming"
_ASK_ADMIN = "Ask the administrator of this machine to delete unneeded files"


class NoRoomError(Exception):
    """The space is insufficient for an upload; the message gives the reason."""


def uploads_folder(runs_dir: Path) -> Path:
    """Return the folder that contains the users' uploads."""
    return runs_dir.resolve().parent / "uploads"


def make_incoming(folder: Path) -> Path:
    """Create the folder of new uploads, closed to all other users of this machine.

    Raises:
        ForeignFileError: if another user has created it.
        OSError: if it cannot be created.
    """
    return private_files.make_folder(private_files.make_folder(folder) / _INCOMING)


class Uploads:
    """The uploads: new files, and files moved to permanent storage."""

    def __init__(self, folder: Path, access: DataAccess) -> None:
        self._folder = folder
        self._access = access
        self._lock = threading.Lock()
        # The folders that are being written, with their maximum size.
        self._in_progress: dict[Path, int] = {}
        # Gradio reads files only below this folder.
        self.incoming = make_incoming(folder.resolve())

    def user_incoming_folder(self) -> Path:
        """Return the folder of the current user's new uploads."""
        name = current_user().name
        return self.incoming / PEOPLE / name if name else self.incoming / "everybody"

    @contextlib.contextmanager
    def make_upload_folder(self, size_bytes: int) -> Iterator[Path]:
        """Yield a new folder for one upload of this size. The folder is deleted if the block raises.

        Raises:
            NoRoomError: if this upload and those in progress would need too much space.
        """
        with self._lock:
            self._check_space(size_bytes)
            folder = self.user_incoming_folder() / secrets.token_urlsafe(16)
            self._in_progress[folder] = size_bytes
        is_complete = False
        try:
            private_files.make_folder(folder)
            yield folder
            is_complete = True
        finally:
            if not is_complete:
                shutil.rmtree(folder, ignore_errors=True)
            with self._lock:
                del self._in_progress[folder]

    def find(self, uploaded: str) -> Path:
        """Return a new upload of the current user, after checking the path, which a client may choose.

        Raises:
            ValueError: if the current user did not upload it.
        """
        source, own_folder = Path(uploaded), self.user_incoming_folder().resolve()
        if (
            not is_plain_path(uploaded)
            or not source.resolve().is_relative_to(own_folder)
            or source.is_symlink()
            or not source.is_file()
        ):
            raise ValueError("the file was not uploaded: choose it again")
        return source

    def keep(self, uploaded: str) -> Path:
        """Move an upload of the current user to permanent storage, and return its new path.

        Raises:
            ValueError: if the current user did not upload it, or it is not a supported kind of data.
        """
        source = self.find(uploaded)
        if source.suffix.lower() not in KINDS:
            raise ValueError(
                f"a file of kind {source.suffix[:40] or 'none'} cannot be used; allowed: {', '.join(KINDS)}"
            )
        folder = self._access.own_uploads()
        folder.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", source.stem)[:60].strip("-_") or "data"
        number = 0
        while True:
            target = folder / f"{stem}{f'-{number}' if number else ''}{source.suffix.lower()}"
            try:
                target.touch(exist_ok=False)
            except FileExistsError:
                number += 1
                continue
            shutil.move(source, target)
            # The upload's folder should now be empty; if not, `tidy` deletes it later.
            with contextlib.suppress(OSError):
                source.parent.rmdir()
            return target.resolve()

    def tidy(self, now_unix_s: float | None = None) -> None:
        """Delete uploads that were not moved within an hour, for example because the tab was closed."""
        oldest = (now_unix_s or time.time()) - FORGOTTEN_AFTER_S
        for path in sorted(self.incoming.rglob("*"), reverse=True):
            # Ignore errors: an upload may have been moved meanwhile, or its folder is being written.
            with contextlib.suppress(OSError):
                file_stat = path.lstat()
                if file_stat.st_mtime >= oldest:
                    continue
                if stat.S_ISDIR(file_stat.st_mode):
                    path.rmdir()
                else:
                    path.unlink()

    def _check_space(self, size_bytes: int) -> None:
        required_bytes = max(size_bytes, MIN_COUNTED_BYTES)
        free_bytes = shutil.disk_usage(self._folder).free - sum(self._in_progress.values())
        if free_bytes - size_bytes < RESERVED_BYTES:
            raise NoRoomError("the disk is nearly full")
        if self._size_bytes(self._folder) + required_bytes > MAX_STORED_BYTES:
            raise NoRoomError(
                f"the limit for all uploads together is {_in_gib(MAX_STORED_BYTES)} GiB. {_ASK_ADMIN}"
            )
        if not current_user().name:
            return
        own_bytes = sum(map(self._size_bytes, (self._access.own_uploads(), self.user_incoming_folder())))
        if own_bytes + required_bytes > MAX_STORED_BYTES_PER_USER:
            raise NoRoomError(
                f"the limit for your uploads is {_in_gib(MAX_STORED_BYTES_PER_USER)} GiB. {_ASK_ADMIN}"
            )

    def _size_bytes(self, folder: Path) -> int:
        """Return the bytes used below a folder; an upload in progress counts with its maximum size."""
        in_progress = {
            folder_path: size
            for folder_path, size in self._in_progress.items()
            if folder_path.is_relative_to(folder)
        }
        size_bytes = sum(max(size, MIN_COUNTED_BYTES) for size in in_progress.values())
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                file_stat = path.lstat()
                if not stat.S_ISDIR(file_stat.st_mode) and path.parent not in in_progress:
                    size_bytes += max(file_stat.st_size, MIN_COUNTED_BYTES)
        return size_bytes


def _in_gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:g}"
