"""Every kind of entry that may lie where a file of ours should be."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

IN_TIME_S = 20.0


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00{" * 100)


def _deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def _empty(path: Path) -> None:
    path.touch()


def _directory(path: Path) -> None:
    path.mkdir()
    (path / ("n" * 255)).touch()
    Path(os.fsdecode(bytes(path) + b"/\xff\xfe")).touch()


def _closed_file(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)


def _closed_directory(path: Path) -> None:
    path.mkdir(mode=0)


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def _link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # A socket's address is short: by the open folder, and its name comes after.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/.s")
        path.with_name(".s").rename(path)
    finally:
        os.close(folder)


def _device(path: Path) -> None:
    # The terminal of nobody: reading it fails, where /dev/zero would never end.
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


ENTRIES: dict[str, Callable[[Path], None]] = {
    "garbage": _garbage,
    "json without end": _deep,
    "empty file": _empty,
    "directory": _directory,
    "closed file": _closed_file,
    "closed directory": _closed_directory,
    "link to itself": _link_to_itself,
    "dangling link": _dangling_link,
    "link to a device": _link_to_a_device,
    "pipe": _pipe,
    "socket": _socket,
}
# Only root makes devices: elsewhere nobody else can put one there either.
if os.geteuid() == 0:
    ENTRIES["device"] = _device


def put(kind: str, path: Path) -> None:
    """Put such an entry in the place of whatever is there."""
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            inside.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    ENTRIES[kind](path)


def in_time(what: str, action: Callable[[], Result]) -> Result:
    """Return what an action returns; fail where it hangs, and let the tests go on all the same."""
    found: list[Result] = []
    errors: list[BaseException] = []

    def act() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            errors.append(error)

    thread = threading.Thread(target=act, name=what, daemon=True)
    thread.start()
    thread.join(IN_TIME_S)
    assert not thread.is_alive(), f"it hangs: {what}"
    if errors:
        raise errors[0]
    return found[0]
