"""Preloaded libraries that simulate conditions not every machine can create."""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.faults.once import once, shared_folder
from tests.faults.trial import CannotBePlayedError


@functools.cache
def _built(name: str) -> Callable[[], Path]:
    return once(lambda: _build(name))


def build(name: str) -> Path:
    """Return the path of a shim, compiled at the first call."""
    return _built(name)()


def _build(name: str) -> Path:
    if shutil.which("gcc") is None:
        raise CannotBePlayedError("a shim has to be compiled, and there is no gcc here")
    target = shared_folder("shims") / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", str(source), "-o", str(target), "-ldl"], check=True)
    return target


def slow(write_ms: int, sync_ms: int) -> dict[str, str]:
    """Return the environment of a run whose every write and sync is delayed."""
    return {
        "LD_PRELOAD": str(build("slow")),
        "SLOW_WRITE_MS": str(write_ms),
        "SLOW_SYNC_MS": str(sync_ms),
    }


class Clock:
    """The time of day of a run, which can be changed during the run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "clock"
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a run that uses this clock."""
        return {"LD_PRELOAD": str(build("clock")), "CLOCK_SHIM": str(self._path)}

    def set(self, offset_s: int) -> None:
        """Set the clock this number of seconds ahead of the real one."""
        if not self._path.exists():
            self._path.write_bytes(bytes(8))
        with self._path.open("r+b") as file:
            file.write(struct.pack("l", offset_s))
