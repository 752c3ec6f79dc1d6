"""All lessons: ours, and those of a teacher's folder; a broken file is named, and breaks nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_gui.learn import lesson_file
from ddp_gui.learn.head import LessonError
from ddp_gui.learn.lesson import Lesson
from trainers.machine.os_errors import explain

MAX_FILES = 200
# What tells that a file has changed.
Mark = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A file that is no lesson, and why."""

    file: str
    words: str


class Library:
    """The lessons of some folders, in the order of their files' names; safe to be used by several threads.

    Args:
        folders: of two lessons of one name that of the later folder counts.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._known: dict[Path, tuple[Mark, Lesson | Broken]] = {}
        self._lock = threading.Lock()

    def read(self) -> tuple[list[Lesson], list[Broken]]:
        """Return all lessons, and the files that are none; what has changed is read again."""
        with self._lock:
            found, broken = dict[str, Lesson](), list[Broken]()
            for folder in self._folders:
                try:
                    paths = sorted(folder.glob("*.md"))[:MAX_FILES]
                except OSError as error:
                    broken.append(Broken(file=folder.name, words=explain(error)))
                    continue
                for path in paths:
                    made = self._of_file(path)
                    if isinstance(made, Broken):
                        broken.append(made)
                    else:
                        found[made.name] = made
            return list(found.values()), broken

    def find(self, name: str) -> Lesson:
        """Return the lesson of a name.

        Raises:
            ValueError: when there is none.
        """
        for lesson in self.read()[0]:
            if lesson.name == name:
                return lesson
        raise ValueError(f"there is no lesson {name!r}")

    def _of_file(self, path: Path) -> Lesson | Broken:
        try:
            about = path.stat()
            mark = (about.st_ino, about.st_mtime_ns, about.st_size)
            known = self._known.get(path)
            if known is not None and known[0] == mark:
                return known[1]
            made: Lesson | Broken = lesson_file.read(path)
        except LessonError as error:
            made = Broken(file=path.name, words=str(error))
        except OSError as error:
            return Broken(file=path.name, words=explain(error))
        self._known[path] = (mark, made)
        return made
