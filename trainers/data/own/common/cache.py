"""Prepared data on disk: made once by the first process that asks, found again by the others.

A folder is named after a fingerprint of all it was made from. It is written as a temporary folder and renamed
when it is complete, under a lock that the kernel releases even when its holder is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.data.dataset import Tokenizer
from trainers.data.own.common import limits
from trainers.data.own.common.problems import DataError, DataProblem
from trainers.data.own.common.store import META, Prepared, sealed
from trainers.files import private_files
from trainers.files.json_files import sync_directory
from trainers.files.paths import REPOSITORY
from trainers.files.shared_folders import ask_anew

log = logging.getLogger(__name__)

FORMAT_VERSION = 3  # changes with the content of prepared folders
CACHE_VARIABLE = "TRAINERS_CACHE"
UNUSED_DAYS = 30
MAX_BYTES = 200 * 10**9  # in total; folders used within a day are kept
_USED = "used"  # its time is that of the last use; of a temporary folder it is locked
_TEMPORARY = ".making-"
_POLL_S = 0.1
_DECODED_AT_ONCE = 1024

Meta = dict[str, Any]


def cache_folder() -> Path:
    """Return where prepared data is kept: TRAINERS_CACHE, else next to the program, else in the user's cache.

    Raises:
        DataError: when none of them can be written to.
    """
    wanted = os.environ.get(CACHE_VARIABLE)
    folder = Path(wanted).expanduser().resolve() if wanted else private_files.cache_folder("prepared")
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    except OSError:
        pass  # refused below
    hint = f"Set {CACHE_VARIABLE} to another folder."
    raise _refused(folder or REPOSITORY / ".cache", "it cannot be written to.", hint)


class TemporaryFolder:
    """A folder in the cache, removed when it is closed or its process ends.

    Its process holds a lock in it. A process that is killed removes nothing, but the kernel releases the
    lock, and the next temporary folder of any process removes the one that was left.
    """

    def __init__(self, name: str) -> None:
        cache = cache_folder()
        for used in cache.glob(f"*{_TEMPORARY}*/{_USED}"):
            with contextlib.suppress(OSError, private_files.ForeignFileError):
                os.close(_lock_now(used))
                shutil.rmtree(used.parent, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}{_TEMPORARY}", dir=cache))
        self._close = weakref.finalize(self, _remove_folder, self.path, _lock_now(self.path / _USED))

    def close(self) -> None:
        """Remove it, unless it was renamed."""
        self._close()


def _lock_now(path: Path) -> int:
    """Open and lock a file, which is created if necessary.

    Raises:
        OSError: when another process holds the lock.
    """
    lock = private_files.open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def fingerprint(path: Path, options: Mapping[str, object]) -> str:
    """Return a digest of the options, and of the path, size and time of every file."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([FORMAT_VERSION, os.fsencode(path).hex(), options], sort_keys=True).encode())
    for name, size, modified in _files(path):
        digest.update(os.fsencode(name) + f"\0{size}\0{modified}\0".encode())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Tokenizer | None) -> str:
    """Return a name for a tokenizer; two of the same name have the same vocabulary."""
    if tokenizer is None:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tokenizer.vocabulary_size} {tokenizer.padding}".encode())
    for start in range(0, tokenizer.vocabulary_size, _DECODED_AT_ONCE):
        tokens = range(start, min(start + _DECODED_AT_ONCE, tokenizer.vocabulary_size))
        digest.update(tokenizer.decode(tokens).encode("utf-8", errors="surrogatepass"))
    return digest.hexdigest()


def find(name: str) -> Prepared | None:
    """Return the prepared folder of this fingerprint if it is complete."""
    return _open(cache_folder() / name)


def find_or_make(name: str, make: Callable[[Path], Meta]) -> Prepared:
    """Return the prepared folder of this fingerprint; create it if it is not there.

    If several processes ask at once, one creates it and the others wait.

    Args:
        make: fills an empty folder and returns the meta data.
    """
    cache = cache_folder()
    if (there := _open(cache / name)) is not None:
        return there
    with _locked(cache / f"{name}.lock"):
        ask_anew(cache)  # another machine may have created it
        there = _open(cache / name)
        return there if there is not None else _make(cache, name, make)


def require_space(folder: Path, num_bytes: int) -> None:
    """Refuse to begin what will not fit.

    Raises:
        DataError: saying how much is needed and where.
    """
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        message = f"{num_bytes / 1e9:,.1f} GB are needed, {free / 1e9:,.1f} GB are free."
        raise _no_space(folder.parent, message)


def _make(cache: Path, name: str, make: Callable[[Path], Meta]) -> Prepared:
    shutil.rmtree(cache / name, ignore_errors=True)
    started = time.monotonic()
    temporary = TemporaryFolder(name)
    try:
        meta = sealed(temporary.path, make(temporary.path))
        with (temporary.path / META).open("w", encoding="utf-8") as file:
            json.dump(meta, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.path.rename(cache / name)
        sync_directory(cache)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(cache, "the disk is full.") from error
        raise
    finally:
        temporary.close()
    log.info("own data: prepared in %.1f s, in %s", time.monotonic() - started, cache / name)
    _remove_unused(cache, keep=name)
    return Prepared(cache / name)


def _open(folder: Path) -> Prepared | None:
    try:
        private_files.require_ours(folder)
        prepared = Prepared(folder)
        if not prepared.is_whole():
            return None
    except private_files.ForeignFileError as error:
        raise _refused(folder, f"{error}.", f"Or set {CACHE_VARIABLE} to a folder of your own.") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    with contextlib.suppress(PermissionError):  # root has prepared it
        (folder / _USED).touch()
    return prepared


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        lock = private_files.open_lock(path)
    except private_files.ForeignFileError as error:
        raise _refused(path, f"{error}.", f"Or set {CACHE_VARIABLE} to a folder of your own.") from error
    with os.fdopen(lock, "r+b") as file:
        said = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - said >= limits.EVERY_S:
                    said = time.monotonic()
                    log.info("own data: another process is preparing it; waiting")
                time.sleep(_POLL_S)
        yield


def _remove_unused(cache: Path, keep: str) -> None:
    """Remove folders that were not used for a month, and the least recently used ones beyond MAX_BYTES."""
    now = time.time()
    left = 0
    by_age = sorted(((used.stat().st_mtime, used.parent) for used in cache.glob(f"*/{_USED}")), reverse=True)
    for used_unix_s, folder in by_age:
        if _TEMPORARY in folder.name:
            continue
        days = (now - used_unix_s) / 86_400
        left += sum(file.stat().st_size for file in folder.iterdir())
        if folder.name != keep and (days > UNUSED_DAYS or (left > MAX_BYTES and days > 1)):
            log.info("own data: removed %s, unused for %.0f days", folder, days)
            shutil.rmtree(folder, ignore_errors=True)


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of each folder and file, in order; of a broken link those of the link."""
    if not path.is_dir():
        about = path.stat()
        yield "", about.st_size, about.st_mtime_ns
        return
    for folder, _, files in limits.walk(path):
        limits.check_time()
        yield os.path.relpath(folder, path) + "/", 0, 0
        for file in files:
            try:
                about = os.stat(os.path.join(folder, file))  # noqa: PTH116, PTH118 - a million of them
            except OSError:
                about = os.lstat(os.path.join(folder, file))  # noqa: PTH118
            yield file, about.st_size, about.st_mtime_ns


def _no_space(folder: Path, message: str) -> DataError:
    hint = f"Free some space, or set {CACHE_VARIABLE} to a folder on a larger disk."
    return _refused(folder, message, hint)


def _refused(folder: Path, message: str, hint: str) -> DataError:
    return DataError(str(folder), [DataProblem(where="the cache folder", message=message, hint=hint)], 1)
