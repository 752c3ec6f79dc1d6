"""Has the files of a checkpoint on the disk and sums them up, each beside the writing of the next."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any


class Sealing:
    """Syncs and sums files from the moment they are written; leaving the block ends what goes on."""

    def __init__(self) -> None:
        # One file waits for the disk while another, or the same, is summed up by the processor.
        self._threads = ThreadPoolExecutor(2)
        self._begun: dict[Path, tuple[Future[None], Future[str]]] = {}

    def __enter__(self) -> Sealing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def begin(self, path: Path) -> None:
        """Take up a file that will not change any more."""
        if path not in self._begun:
            self._begun[path] = (
                self._threads.submit(_sync_file, path),
                self._threads.submit(sha256_of, path),
            )

    def finish(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Have every file below a folder on the disk; return size and SHA-256 of each, by its relative name.

        Raises:
            OSError: when a file cannot be brought to the disk, or read.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in paths:
            self.begin(path)
        described = {}
        for path in paths:
            synced, sha256 = self._begun[path]
            synced.result()
            name = path.relative_to(folder).as_posix()
            described[name] = {"size_bytes": path.stat().st_size, "sha256": sha256.result()}
        return described


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
