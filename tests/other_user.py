"""Another user of this machine: without rights of his own, he tries what the system lets him."""

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
    """Let the other user run a command; tell whether it worked."""
    ended = subprocess.run(
        command, user=UID, group=gid, extra_groups=[], capture_output=True, timeout=30, check=False
    )
    return ended.returncode == 0


def told(*command: str | Path) -> str:
    """Let the other user run a command that works, and return what it printed."""
    ended = subprocess.run(
        command, user=UID, group=UID, extra_groups=[], capture_output=True, timeout=60, check=True
    )
    return ended.stdout.decode()


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Let the other user hold a lock meanwhile, as far as he can open the file."""
    with subprocess.Popen(
        ["flock", "--no-fork", "--exclusive", path, "sh", "-c", "echo held; exec sleep 600"],
        user=UID,
        group=UID,
        extra_groups=[],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # he has it, or could not get it
        try:
            yield
        finally:
            process.kill()


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a file another user's, and return his name in an error.

    Who is not root cannot give anything away: then it is this process that seems to be somebody else.
    """
    if os.geteuid() == 0:
        os.chown(path, UID, UID, follow_symlinks=False)
    else:
        monkeypatch.setattr("trainers.files.private_files.os.geteuid", lambda: UID)
    return "belongs to"


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Return a folder that everybody on this machine may enter and read; pytest's own is closed."""
    folder = Path(tempfile.mkdtemp(prefix="ddp-shared-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
