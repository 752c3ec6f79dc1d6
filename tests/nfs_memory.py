"""Simulate the attribute cache of an NFS client (nfs(5)) on any file system.

The behaviour was observed on a real client (docs/several-machines.md). The result of a `stat` is cached until
the file is opened, and a missing name stays missing until its folder is opened. Unlike a real cache, entries
never expire.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class NfsMemory:
    """This machine's cached view of a folder. Other machines write to the folder within `elsewhere`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = str(folder)
        self._seen: dict[str, os.stat_result | None] = {}
        self._thread = threading.local()
        self._stat, self._open = os.stat, os.open
        monkeypatch.setattr(os, "stat", self._remembered_stat)
        # Path.lstat calls it since Python 3.14.
        monkeypatch.setattr(os, "lstat", functools.partial(self._remembered_stat, follow_symlinks=False))
        monkeypatch.setattr(os, "open", self._open_and_remember)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Act as another machine within the block: bypass the cache."""
        self._thread.is_elsewhere = True
        try:
            yield
        finally:
            self._thread.is_elsewhere = False

    def _is_remembered(self, path: Any) -> bool:
        return (
            not getattr(self._thread, "is_elsewhere", False)
            and not isinstance(path, int)
            and os.fspath(path).startswith(self._folder)
        )

    def _remembered_stat(self, path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if not self._is_remembered(path):
            return self._stat(path, *arguments, **options)
        name = os.fspath(path)
        self._refuse_what_was_not_there(name)
        if self._seen.get(name) is None:
            self._seen[name] = None
            self._seen[name] = self._stat(path, *arguments, **options)
        seen = self._seen[name]
        assert seen is not None
        return seen

    def _open_and_remember(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if not self._is_remembered(path) or "dir_fd" in options:
            return self._open(path, flags, *arguments, **options)
        name = os.fspath(path)
        if not flags & os.O_CREAT:
            self._refuse_what_was_not_there(name)
            self._seen[name] = None
        descriptor = self._open(path, flags, *arguments, **options)
        self._seen[name] = os.fstat(descriptor)
        if flags & os.O_DIRECTORY:
            for each in [each for each, seen in self._seen.items() if seen is None]:
                if str(Path(each).parent) == name:
                    del self._seen[each]
        return descriptor

    def _refuse_what_was_not_there(self, name: str) -> None:
        for above in (Path(name), *Path(name).parents):
            if self._seen.get(str(above), True) is None:
                raise FileNotFoundError(2, "as it is remembered", name)
