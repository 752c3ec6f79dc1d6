"""Run commands as another, unprivileged user of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

UID = 65534
NEEDS_ROOT = "a second user is needed to attack as one, and only root can act as somebody else"
needs_a_second_user = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)


def has_done(*command: str | Path, gid: int = UID) -> bool:
    """Run a command as the other user; return True if it succeeded."""
    ended = subprocess.run(
        command, user=UID, group=gid, extra_groups=[], capture_output=True, timeout=30, check=False
    )
    return ended.returncode == 0


def told(*command: str | Path) -> str:
    """Run a command as the other user and return its output; raise if it fails."""
    ended = subprocess.run(
        command, user=UID, group=UID, extra_groups=[], capture_output=True, timeout=60, check=True
    )
    return ended.stdout.decode()


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Let the other user hold a lock on the file during the block, if they can open it."""
    with subprocess.Popen(
        ["flock", "--no-fork", "--exclusive", path, "sh", "-c", "echo held; exec sleep 600"],
        user=UID,
        group=UID,
        extra_groups=[],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the lock is held, or could not be acquired
        try:
            yield
        finally:
            process.kill()


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make another user the owner of a file and return the expected part of the error message.

    Without root, chown is not allowed; then `geteuid` of this process is patched instead.
    """
    if os.geteuid() == 0:
        os.chown(path, UID, UID, follow_symlinks=False)
    else:
        monkeypatch.setattr("trainers.files.private_files.os.geteuid", lambda: UID)
    return "belongs to"


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Yield a folder that all users of this machine may enter and read; pytest's folder is private."""
    folder = Path(tempfile.mkdtemp(prefix="ddp-shared-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
