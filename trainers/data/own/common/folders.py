"""Goes through a folder of anybody's making: in order, and never deeper than is sensible."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_DEPTH = 32


class TooDeepError(OSError):
    """A folder that lies too deep to be gone into."""


def walk(
    top: Path, refused: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with the names of the folders and files in it, sorted; links are not followed.

    The caller may take folders out of the list, which are then not gone into.

    Args:
        refused: is told of each folder that cannot be opened, or lies too deep.
    """
    depth_of_top = str(top).rstrip(os.sep).count(os.sep)
    for folder, inside, files in os.walk(top, onerror=refused):
        inside.sort()
        yield folder, inside, sorted(files)
        if inside and folder.rstrip(os.sep).count(os.sep) - depth_of_top >= MAX_DEPTH:
            inside.clear()
            if refused is not None:
                too_deep = f"{MAX_DEPTH} folders, one in the other, are the most"
                refused(TooDeepError(0, too_deep, folder))
