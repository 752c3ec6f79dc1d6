"""Where progress is kept with an account: a small file a person, which nobody else's requests ever read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddp_gui.auth import current_user
from ddp_gui.auth.account_file import NAME
from ddp_gui.auth.class_settings import FOLDER as CLASS_FOLDER
from ddp_gui.background.rate_limit import RateLimit
from ddp_gui.learn.progress import record
from ddp_gui.learn.progress.record import Progress
from trainers.files import private_files
from trainers.files.json_files import read_json, write_json_atomically

FOLDER = "progress"
# Of what lessons somebody's file may tell; what was touched least recently is forgotten first.
MAX_LESSONS = 300
# A page tells of a curve that is drawn once a second.
MOST_CHANGES = 120
# When each of these was first so, for the teacher's table; the page's clock, not the browser's.
TIMES = {"isLocked": "predicted_unix_s", "isStarted": "started_unix_s", "isDone": "done_unix_s"}


class ProgressFiles:
    """The files of all people; safe to be used by several threads."""

    def __init__(self, runs_dir: Path) -> None:
        self._folder = runs_dir / CLASS_FOLDER / FOLDER
        self._changes = RateLimit("a change of your progress", MOST_CHANGES, 60.0)
        self._lock = threading.Lock()

    def of_current_user(self) -> dict[str, Progress]:
        """Return the progress of whoever asks, by lesson; none without an account."""
        name = current_user.current_user().name
        lessons = self._read(name)["lessons"] if name else {}
        return {lesson: about["progress"] for lesson, about in lessons.items()}

    def keep(self, lesson: str, told: Any) -> Progress:
        """Keep what a page of the current user tells of a lesson; return what holds now.

        Raises:
            ValueError: without an account, too often, or when it is no progress.
            OSError: when it cannot be written.
        """
        name = current_user.current_user().name
        if not name:
            raise ValueError("progress is kept in the browser where nobody logs in")
        checked = record.checked(told)
        self._changes.count()
        with self._lock:
            content = self._read(name)
            lessons = content["lessons"]
            known = lessons.pop(lesson, {"progress": record.nothing(), "times": {}})
            joined = record.joined(known["progress"], checked)
            lessons[lesson] = {"progress": joined, "times": _times(known, joined)}
            for oldest in list(lessons)[: max(0, len(lessons) - MAX_LESSONS)]:
                del lessons[oldest]
            private_files.make_folder(self._folder.parent)
            private_files.make_folder(self._folder)
            write_json_atomically(self._path(name), content, mode=0o600)
        return joined

    def everybody(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each person's name, and what is kept of them by lesson."""
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []:
            if NAME.fullmatch(path.stem):
                yield path.stem, self._read(path.stem)["lessons"]

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), "names of accounts are checked before"
        return self._folder / f"{name}.json"

    def _read(self, name: str) -> dict[str, Any]:
        """Return a file's content; what is no progress in it is left out, never the rest with it."""
        try:
            raw = read_json(self._path(name), must_be_ours=True)
        except FileNotFoundError:
            raw = {}
        except ValueError as error:
            print(f"The progress of {name} cannot be read: {error}.", flush=True)
            raw = {}
        lessons: dict[str, Any] = {}
        kept = raw.get("lessons") if isinstance(raw, dict) else None
        for lesson, about in kept.items() if isinstance(kept, dict) else ():
            try:
                times = {key: float(about["times"][key]) for key in TIMES.values() if key in about["times"]}
                lessons[lesson] = {"progress": record.checked(about["progress"]), "times": times}
            except (ValueError, LookupError, TypeError):
                continue
        return {"lessons": lessons}


def _times(known: dict[str, Any], joined: Progress) -> dict[str, float]:
    before = known["times"] if joined["round"] == known["progress"]["round"] else {}
    now = time.time()
    return {key: before.get(key, now) for flag, key in TIMES.items() if joined[flag]}
