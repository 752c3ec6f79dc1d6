"""Every kind of file system entry that may exist in place of one of our files."""

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
    # The path of a socket has a length limit. Bind through the open folder, then rename.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/.s")
        path.with_name(".s").rename(path)
    finally:
        os.close(folder)


def _device(path: Path) -> None:
    # Device 1:5 is /dev/zero: code that reads it instead of refusing it never ends.
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
# Only root can create devices.
if os.geteuid() == 0:
    ENTRIES["device"] = _device


def put(kind: str, path: Path) -> None:
    """Replace whatever exists at `path` with such an entry."""
    if path.is_dir() and not path.is_symlink():
        for inside in path.iterdir():
            inside.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    ENTRIES[kind](path)


def in_time(what: str, action: Callable[[], Result]) -> Result:
    """Return the result of an action. Fail if it hangs, without blocking the remaining tests."""
    found: list[Result] = []
    errors: list[BaseException] = []

    def act() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            errors.append(error)

    thread = threading.Thread(target=act, name=what, daemon=True)
    thread.start()
    thread.join(IN_TIME_S)
    assert not thread.is_alive(), f"it hangs: {what}"
    if errors:
        raise errors[0]
    return found[0]
