"""An attack by a file or a path: how to create it, and whether it must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Maker = Callable[[Path], Path]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A file created in an empty folder, whose data is then inspected.

    Attributes:
        make: creates it and returns its path.
        is_refused: False: unusual but harmless, and must be read.
    """

    name: str
    make: Maker
    is_refused: bool = True


def with_bytes(name: str, content: bytes) -> Maker:
    """Return a maker of a file with this name and content."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def at(path: str) -> Maker:
    """Return a maker of an existing path of this machine."""
    return lambda _folder: Path(path)
