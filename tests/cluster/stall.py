"""A mock of a shared folder that stops answering on one host: a preloaded library.

The test hosts share the file system of one kernel, so a server that one of them cannot reach does not exist.
The library (`stall.c`) blocks every call on a file below `under` while the host is in `stalled`, as a hard
NFS mount does. Programs that run with `environment` load it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SHARED, STALLED = "shared", "stalled"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The folder that can be cut off, and the environment of the programs for which it can."""

    under: Path
    flags: Path
    environment: Mapping[str, str]

    @contextlib.contextmanager
    def on(self, host: str) -> Iterator[None]:
        """Block all calls of a host on the folder until the end of the block."""
        flag = self.flags / host
        flag.touch()
        try:
            yield
        finally:
            flag.unlink()


def build(folder: Path) -> Stall:
    """Compile the library and create the shared folder."""
    assert shutil.which("gcc") is not None, "the mock of a stalled mount has to be compiled: install gcc"
    under, flags, library = folder / SHARED, folder / STALLED, folder / "stall.so"
    for place in (under, flags):
        place.mkdir(mode=0o700)
    source = Path(__file__).with_name("stall.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library), "STALL_UNDER": str(under), "STALL_FLAGS": str(flags)}
    return Stall(under=under, flags=flags, environment=environment)
