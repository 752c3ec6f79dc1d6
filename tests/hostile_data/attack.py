"""One attack by a file or a path: how it is made, and whether it is to be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Maker = Callable[[Path], Path]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What is made in an empty folder and given to whoever looks at data.

    Attributes:
        make: makes it and returns its path.
        is_refused: else it is odd but harmless, and has to be read.
        options: of `trainers.plugins.inspect_data`.
    """

    name: str
    make: Maker
    is_refused: bool = True
    options: tuple[str, ...] = ()


def with_bytes(name: str, content: bytes) -> Maker:
    """Return what makes a file of this name and content."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def at(path: str) -> Maker:
    """Return what makes nothing and points at a path of this machine."""
    return lambda _folder: Path(path)
