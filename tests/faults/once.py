"""Resources shared by all trials: created once, thread-safe, removed at exit."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")

_lock = threading.RLock()


def once(make: Callable[[], Value]) -> Callable[[], Value]:
    """Cache the result of the first successful call.

    Concurrent calls are serialized; exceptions are not cached.
    """
    made: list[Value] = []

    @functools.wraps(make)
    def get() -> Value:
        with _lock:
            if not made:
                made.append(make())
            return made[0]

    return get


@once
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="faults-shared-")


def shared_folder(name: str) -> Path:
    """Return a folder that exists until this process ends."""
    folder = Path(_place().name) / name
    folder.mkdir(exist_ok=True)
    return folder
