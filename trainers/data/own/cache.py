"""The cache of own data: arrays on disk, one folder per prepared data set, and removal of old folders.

Own data is parsed once and then read as memory-mapped arrays. A prepared folder is named by a fingerprint of
the options and of the path, size and time of every source file, so a changed file or option leads to another
folder. The steps of `find_or_make` guarantee that a folder with that name is complete:

1. A lock file per fingerprint lets one process prepare the data while the other processes wait.
2. Arrays and `meta.json` are written into a temporary folder and synced.
3. The temporary folder is renamed to its final name, which is atomic.
4. `meta.json` contains a seal (size and time of each array, digest of the metadata). A folder whose seal
   does not match was changed or damaged and is prepared again.

The file `used` in a folder has the time of its last use; folders unused for a month are removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.data.dataset import Tokenizer
from trainers.data.own import processes
from trainers.data.own.problems import DataError
from trainers.files import private_files
from trainers.files.json_files import sync_directory
from trainers.files.plain_files import REPOSITORY, ask_anew

META = "meta.json"
SEAL = "seal"
# Touched pages of a memory map count as memory of this process; they are released after this many bytes.
BYTES_BEFORE_RELEASE = 64 * 2**20
# A split up to this size is loaded into memory, on the model's device.
SMALL_BYTES = 256 * 2**20

Array = npt.NDArray[Any]


class ArrayWriter:
    """Writes one array row by row; the number of rows is not known in advance.

    Args:
        row_shape: the shape of one row; () for scalars.
    """

    def __init__(self, folder: Path, name: str, dtype: str, row_shape: tuple[int, ...]) -> None:
        self.name = name
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._num_rows = 0
        self._file = (folder / f"{name}.bin").open("wb")

    def append(self, rows: Array) -> None:
        """Write (rows, *row_shape) values."""
        assert rows.shape[1:] == self._row_shape
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._num_rows += len(rows)

    def close(self) -> dict[str, Any]:
        """Sync the file to disk and return the dtype and shape for `MappedArray`."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self._dtype.str, "shape": [self._num_rows, *self._row_shape]}


def write_arrays(folder: Path, **arrays: Array) -> dict[str, Any]:
    """Write complete arrays; return their metadata by name."""
    written = {}
    for name, values in arrays.items():
        writer = ArrayWriter(folder, name, values.dtype.str, values.shape[1:])
        if values.size:
            writer.append(values)
        written[name] = writer.close()
    return written


class MappedArray:
    """A memory-mapped array, opened at the first read; pickling keeps the path, not the map."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._map: mmap.mmap | None = None
        self._num_touched = 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def take(self, rows: Array) -> Array:
        """Return a copy of the rows of these numbers, which may have any shape."""
        return self._released(self._view()[rows])

    def slice(self, start: int, end: int) -> Array:
        """Return a copy of the rows from `start` up to `end`."""
        return self._released(self._view()[start:end].copy())

    @classmethod
    def of(cls, folder: Path, name: str, arrays: Mapping[str, Any]) -> MappedArray:
        """Return an array of a folder by the metadata of its arrays."""
        return cls(folder / f"{name}.bin", arrays[name]["dtype"], tuple(arrays[name]["shape"]))

    def all(self) -> Array:
        """Return a copy of the array."""
        return self.slice(0, len(self))

    def _view(self) -> Array:
        if self.num_bytes == 0:
            return np.empty(self.shape, self.dtype)
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self.num_bytes, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, self.dtype).reshape(self.shape)

    def _released(self, rows: Array) -> Array:
        # A row touches at least one page, and the kernel reads ahead around it: estimated as 16 pages.
        self._num_touched += max(rows.nbytes, len(rows) * 16 * mmap.PAGESIZE)
        if (
            self._map is not None
            and self._num_touched > BYTES_BEFORE_RELEASE
            and hasattr(mmap, "MADV_DONTNEED")
        ):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._num_touched = 0
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None, "_num_touched": 0}


class PreparedData:
    """A prepared folder: metadata and arrays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / META).read_text("utf-8"))

    def array(self, name: str) -> MappedArray:
        """Return an array by name."""
        return MappedArray.of(self.folder, name, self.meta["arrays"])

    def is_whole(self) -> bool:
        """Return True if the metadata, and size and time of each file, have not changed since writing."""
        meta = dict(self.meta)
        return bool(meta.pop(SEAL) == _seal(self.folder, meta))


def _seal(folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Return the seal of a prepared folder, by which later changes are detected."""
    files = {name: (folder / f"{name}.bin").stat() for name in meta["arrays"]}
    return {
        "meta": hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16).hexdigest(),
        "files": {name: [status.st_size, status.st_mtime_ns] for name, status in files.items()},
    }


log = logging.getLogger(__name__)

FORMAT_VERSION = 6  # changes with the content of prepared folders
CACHE_VARIABLE = "TRAINERS_CACHE"
UNUSED_DAYS = 30
MAX_BYTES = 200 * 10**9  # in total; folders used within a day are kept
_USED = "used"  # a file whose modification time is the last use; locked while its folder is temporary
_TEMPORARY = ".making-"
_POLL_S = 0.1
_DECODED_AT_ONCE = 1024

Meta = dict[str, Any]


def cache_folder() -> Path:
    """Return the folder for prepared data: TRAINERS_CACHE, else next to the program, else the user's cache.

    Raises:
        DataError: if it is not writable.
    """
    configured = os.environ.get(CACHE_VARIABLE)
    folder = Path(configured).expanduser().resolve() if configured else private_files.cache_folder("prepared")
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
    """A folder in the cache that is removed when it is closed or its process ends.

    Its process holds a lock on a file in it. A killed process cannot remove the folder, but the kernel
    releases the lock. Any process that creates a temporary folder first removes those whose lock is free.
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
        """Remove the folder, unless it was renamed."""
        self._close()


def _lock_now(path: Path) -> int:
    """Open and lock a file, creating it if necessary; return its descriptor.

    Raises:
        OSError: if another process holds the lock.
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
    """Return a digest of the options, and of the path, size and modification time of every file."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([FORMAT_VERSION, os.fsencode(path).hex(), options], sort_keys=True).encode())
    for name, size, modified in _files(path):
        digest.update(os.fsencode(name) + f"\0{size}\0{modified}\0".encode())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: Tokenizer | None) -> str:
    """Return a digest of a tokenizer's vocabulary, or "" without a tokenizer."""
    if tokenizer is None:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tokenizer.vocabulary_size} {tokenizer.padding}".encode())
    for start in range(0, tokenizer.vocabulary_size, _DECODED_AT_ONCE):
        tokens = range(start, min(start + _DECODED_AT_ONCE, tokenizer.vocabulary_size))
        digest.update(tokenizer.decode(tokens).encode("utf-8", errors="surrogatepass"))
    return digest.hexdigest()


def find(name: str) -> PreparedData | None:
    """Return the prepared folder of this fingerprint if it is complete."""
    return _open(cache_folder() / name)


def find_or_make(name: str, make: Callable[[Path], Meta]) -> PreparedData:
    """Return the prepared folder of this fingerprint; create it if it does not exist.

    If several processes call this at the same time, one creates it and the other processes wait.

    Args:
        make: fills an empty folder and returns the metadata.
    """
    cache = cache_folder()
    if (opened := _open(cache / name)) is not None:
        return opened
    with _locked(cache / f"{name}.lock"):
        ask_anew(cache)  # on a network disk, another machine may have created it
        opened = _open(cache / name)
        return opened if opened is not None else _make(cache, name, make)


def require_space(folder: Path, num_bytes: int) -> None:
    """Check that a folder's disk has enough free space.

    Raises:
        DataError: if not; says how much is needed and where.
    """
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        message = f"{num_bytes / 1e9:,.1f} GB are needed, {free / 1e9:,.1f} GB are free."
        raise _no_space(folder.parent, message)


def _make(cache: Path, name: str, make: Callable[[Path], Meta]) -> PreparedData:
    # A folder of this name is incomplete or changed: `_open` has rejected it.
    shutil.rmtree(cache / name, ignore_errors=True)
    started = time.monotonic()
    temporary = TemporaryFolder(name)
    try:
        meta = json.loads(json.dumps(make(temporary.path)))
        meta[SEAL] = _seal(temporary.path, meta)
        with (temporary.path / META).open("w", encoding="utf-8") as file:
            json.dump(meta, file)
            file.flush()
            os.fsync(file.fileno())
        # Arrays and metadata are synced before the rename: the final name never refers to partial data, even
        # after a power failure.
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
    return PreparedData(cache / name)


def _open(folder: Path) -> PreparedData | None:
    try:
        private_files.require_ours(folder)
        prepared = PreparedData(folder)
        if not prepared.is_whole():
            return None
    except private_files.ForeignFileError as error:
        raise _refused(folder, f"{error}.", f"Or set {CACHE_VARIABLE} to a folder of your own.") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    with contextlib.suppress(PermissionError):  # prepared by root
        (folder / _USED).touch()
    return prepared


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        lock = private_files.open_lock(path)
    except private_files.ForeignFileError as error:
        raise _refused(path, f"{error}.", f"Or set {CACHE_VARIABLE} to a folder of your own.") from error
    with os.fdopen(lock, "r+b") as file:
        reported_at = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - reported_at >= processes.EVERY_S:
                    reported_at = time.monotonic()
                    log.info("own data: another process is preparing it; waiting")
                time.sleep(_POLL_S)
        yield


def _remove_unused(cache: Path, keep: str) -> None:
    """Remove folders unused for a month, and the least recently used ones beyond MAX_BYTES in total."""
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
    """Yield name, size and modification time of each folder and file; of a broken link, its own."""
    if not path.is_dir():
        status = path.stat()
        yield "", status.st_size, status.st_mtime_ns
        return
    for folder, _, files in processes.walk(path):
        processes.check_time()
        yield os.path.relpath(folder, path) + "/", 0, 0
        for file in files:
            try:
                status = os.stat(os.path.join(folder, file))  # noqa: PTH116, PTH118 - for many files
            except OSError:
                status = os.lstat(os.path.join(folder, file))  # noqa: PTH118
            yield file, status.st_size, status.st_mtime_ns


def _no_space(folder: Path, message: str) -> DataError:
    hint = f"Free some space, or set {CACHE_VARIABLE} to a folder on a larger disk."
    return _refused(folder, message, hint)


def _refused(folder: Path, message: str, hint: str) -> DataError:
    return DataError.of(str(folder), "the cache folder", message, hint)
