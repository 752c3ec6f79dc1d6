"""The checks of the runs directory: speed of its disk, and required features of its file system."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path

from trainers.check_machine.checks.cancelling import CancellableWait
from trainers.check_machine.checks.findings import REPORT_HINT, Outcome, Value
from trainers.files import private_files
from trainers.files.json_files import write_json_atomically

BLOCK_BYTES = 4 * 2**20
MAX_BYTES = 256 * 2**20
MAX_WRITE_S = 2.0
NUM_SMALL_FILES = 20
# Required free space, several times what jobs write. With less, nothing is measured and no job starts.
MIN_FREE_BYTES = 128 * 2**20
FREE_SPACE_HINT = "Free some space on this disk, or choose another disk for the runs with --runs-dir."
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Speed below which saving even a small model visibly delays training.
SLOW_BYTES_PER_S = 50e6
SLOW_SMALL_FILE_S = 0.25


def check_file_system(folder: Path) -> Outcome:
    """Test the features that runs need: exclusive locks, permissions, atomic replacement of a file."""
    problems = []
    lock = folder / "a.lock"
    first, second = (os.open(lock, os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            problems.append("locks have no effect")
        except BlockingIOError:
            pass
    except OSError as error:
        problems.append(f"a file cannot be locked ({error.strerror})")
    finally:
        os.close(first)
        os.close(second)
    file_status = lock.stat()
    if not private_files.is_ours(file_status):
        problems.append("new files belong to another user")
    if file_status.st_mode & 0o077:
        problems.append("files cannot be protected from other users of this machine")
    small = folder / "small.json"
    write_json_atomically(small, {"number": 1}, mode=0o600)
    write_json_atomically(small, {"number": 2}, mode=0o600)
    if problems:
        return Outcome.failed(
            f"On the file system of the runs {', '.join(problems)}.",
            "With --runs-dir, choose a local disk (ext4, xfs, btrfs, APFS), or a network file system with "
            "locks and owners.",
        )
    return Outcome.passed("Locks, owners, permissions and atomic replacement of files work.")


def check_disk(folder: Path, waiter: CancellableWait) -> Outcome:
    """Measure the speeds of writing and reading, and the time to replace a small file, with fsync.

    Raises:
        CancelledError: If a user cancels the check.
        OSError: If the disk cannot be written.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        return Outcome.failed(
            f"Not enough free space to measure: {free_bytes / 1e6:.0f} MB free.", FREE_SPACE_HINT
        )
    path = folder / "speed.bin"
    try:
        num_bytes, write_s = _write(path, min(MAX_BYTES, free_bytes // 2), waiter)
        read_s, was_in_memory = _read(path, waiter)
    finally:
        path.unlink(missing_ok=True)
    started = time.perf_counter()
    for number in range(NUM_SMALL_FILES):
        write_json_atomically(folder / "small.json", {"number": number}, mode=0o600)
    small_file_s = (time.perf_counter() - started) / NUM_SMALL_FILES
    written, read = num_bytes / write_s, num_bytes / read_s
    values = (
        Value(name="writing", value=written, unit="bytes/s"),
        # Reads from the page cache do not measure the disk, so they are not compared.
        Value(name="reading", value=read, unit="bytes/s", is_compared=not was_in_memory),
        Value(name="a small file", value=small_file_s, unit="s"),
    )
    message = (
        f"A checkpoint of 1 GB takes about {1e9 / written:.1f} s to write; replacing a small file such as "
        f"status.json takes {1e3 * small_file_s:.1f} ms."
    )
    hint = ""
    if written < SLOW_BYTES_PER_S or small_file_s > SLOW_SMALL_FILE_S:
        hint = "This disk is slow: choose a local disk with --runs-dir, or save less often."
    return Outcome.passed(message, values=values, hint=hint)


def failure(error: OSError) -> Outcome:
    """Return the outcome for a file that could not be written or read."""
    if error.errno in _NO_SPACE:
        message = "A file could not be written because the disk is full or its quota is used up."
        return Outcome.failed(message, FREE_SPACE_HINT)
    return Outcome.failed(f"A file could not be written or read: {error.strerror}.", REPORT_HINT)


def _write(path: Path, max_bytes: int, waiter: CancellableWait) -> tuple[int, float]:
    """Write a file until the time or size limit, with fsync; return the number of bytes and the seconds."""
    # Use random bytes, which the file system cannot compress.
    block = os.urandom(BLOCK_BYTES)
    num_bytes, started = 0, time.perf_counter()
    with path.open("xb", buffering=0) as file:
        while num_bytes < max_bytes and time.perf_counter() - started < MAX_WRITE_S:
            waiter.raise_if_cancelled()
            num_bytes += file.write(block)
            os.fsync(file.fileno())
    return num_bytes, time.perf_counter() - started


def _read(path: Path, waiter: CancellableWait) -> tuple[float, bool]:
    """Read the file; return the seconds, and whether it may have been read from the page cache."""
    was_in_memory = not hasattr(os, "posix_fadvise")
    with path.open("rb", buffering=0) as file:
        if not was_in_memory:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while file.read(BLOCK_BYTES):
            waiter.raise_if_cancelled()
    return time.perf_counter() - started, was_in_memory
