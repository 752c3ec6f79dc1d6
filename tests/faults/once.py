"""What many trials share is made once, however many threads ask for it, and cleared away at the end."""

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
    """Call a function the first time only, one thread at a time; where it fails the next call tries again."""
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
    """Return a folder that lasts as long as this process."""
    folder = Path(_place().name) / name
    folder.mkdir(exist_ok=True)
    return folder
