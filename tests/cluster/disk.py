"""A small disk, shared by all simulated hosts, that tests fill."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

SMALL_DISK, SMALL_DISK_MB = "small_disk", 64


def mount_small_disk(stack: contextlib.ExitStack, folder: Path) -> None:
    """Mount the disk until the stack closes. Hosts see only what was mounted before their creation."""
    place = folder / SMALL_DISK
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", place], check=True)
    stack.callback(lambda: subprocess.run(["umount", "--lazy", place], check=True))


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Keep a disk full until the block ends."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 2**20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
        yield
    ballast.unlink()
