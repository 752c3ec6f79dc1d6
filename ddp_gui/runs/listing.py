"""The list of runs: a cached row for each; only what changed is read again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ddp_gui.events.digest import Digest
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs import listing_cache
from ddp_gui.runs.facts import Facts, facts_of
from ddp_gui.runs.rows import Row, row_of, unreadable_row
from trainers.contract import events, run_ids, rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.files import plain_files
from trainers.files.file_stat import (
    WATCHED,
    FileStat,
    FileStats,
    are_settled,
    settled_stat_of,
    stat_of,
    stats_of,
)

# Ended runs rarely change, and never by the page without notice.
REFRESH_ALL_EVERY_S = 30.0
# The time for reading per request: the rest is read at the next request.
READ_AT_MOST_S = 0.3


@dataclass
class Entry:
    """What is known of one run, and the state of its files when that was read.

    `folded` is the serialised digest of its events: only live runs need it in memory.
    """

    row: Row
    marks: FileStats = ()
    is_settled: bool = False
    facts: Facts | None = None
    folded: str | None = None
    created_unix_s: float = 0.0
    version: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the state can change without a file changing: it depends on a lock."""
        return self.row["state"] in events.LIVE_STATES

    def is_as_read(self, marks: FileStats) -> bool:
        """Tell whether the entry is up to date."""
        return self.is_settled and not self.is_live and self.marks == marks


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes since a version; `num_unread` runs have not been read yet."""

    version: int
    is_whole: bool
    rows: list[Row]
    # The ids of runs that are gone, and their owners.
    gone: dict[str, str | None]
    num_unread: int


KEPT = ("row", "marks", "facts", "folded", "created_unix_s")


class Listing:
    """The rows of all runs of one directory; thread-safe."""

    def __init__(
        self,
        runs_dir: Path,
        catalogue: Callable[[], Catalogue],
        known_to: Callable[[RunDirectory, Config, Catalogue], Catalogue],
    ) -> None:
        self.runs_dir = runs_dir
        self._dir = str(runs_dir)
        self._catalogue = catalogue
        self._known_to = known_to
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._gone: dict[str, tuple[int, str | None]] = {}
        self._unread: list[str] = []
        # After a restart every version is larger than those handed out before: a page asks for all again.
        self._version = self._first_version = int(time.time() * 1000)
        self._refreshed_all_at = -REFRESH_ALL_EVERY_S
        self._dir_mark: FileStat | None = None
        self._is_loaded = False
        self._has_news_for_cache = False
        self._facts_of: Catalogue | None = None

    def rows(self) -> list[Row]:
        """Return every run's row, newest first, all as they are now."""
        self.refresh(at_all=True)
        while self._unread:
            self.refresh()
        with self._lock:
            rows = [
                {name: value for name, value in entry.row.items() if name != "curve"}
                for entry in self._entries.values()
            ]
        return sorted(rows, key=lambda row: (-row["created_unix_s"], row["run_id"]))

    def row(self, run_id: str) -> Row:
        """Return one run's row as it is now.

        Raises:
            ValueError: when there is no such run.
        """
        rundir.open_run(self.runs_dir, run_id)
        while True:  # a long file takes several turns, between which others get the lock
            with self._lock:
                self.read_again([run_id])
                if run_id not in self._unread:
                    return self._entries[run_id].row

    def changes(self, since: int = -1) -> Changes:
        """Return what has changed since a version; everything where the version is not known."""
        with self._lock:
            is_whole = not self._first_version <= since <= self._version
            self.refresh()
            after = self._first_version if is_whole else since
            return Changes(
                version=self._version,
                is_whole=is_whole,
                rows=[entry.row for entry in self._entries.values() if is_whole or entry.version > after],
                gone={run_id: owner for run_id, (version, owner) in self._gone.items() if version > after},
                num_unread=len(self._unread),
            )

    def begin_anew(self) -> None:
        """Make every page fetch all rows again, after a change of who may see which runs."""
        with self._lock:
            self._version += 1
            self._first_version = self._version
            self._gone.clear()

    def read_again(self, run_ids: Iterable[str]) -> None:
        """Read these runs now, because the page has changed them."""
        with self._lock:
            self._load_once()
            self._version += 1
            catalogue = self._checked_catalogue()
            for run_id in run_ids:
                marks = stats_of(f"{self._dir}/{run_id}")
                if marks[0] is None:
                    self._drop(run_id)
                else:
                    self._read(run_id, marks, catalogue)

    def refresh(self, *, at_all: bool = False) -> None:
        """Find what changed: of live runs always, of the others at intervals or on request."""
        asked_at = time.monotonic()
        with self._lock:
            if at_all and self._refreshed_all_at > asked_at and not self._unread:
                return  # concurrent requests share one refresh that began after they arrived
            self._load_once()
            self._version += 1
            is_due = at_all or time.monotonic() - self._refreshed_all_at > REFRESH_ALL_EVERY_S
            if is_due or self._dir_mark is None or self._dir_mark != settled_stat_of(self._dir):
                catalogue = self._checked_catalogue()
                self._read_all(catalogue)
            else:
                catalogue = self._facts_of or self._checked_catalogue()
                for run_id, entry in list(self._entries.items()):
                    if entry.is_live or not entry.is_settled:
                        self._read_if_changed(run_id, catalogue)
            self._read_on(catalogue)

    def save(self) -> None:
        """Store the rows for the next start of the page, if they are new.

        Raises:
            OSError, ForeignFileError: when it cannot be written; the next start then reads everything again.
        """
        with self._lock:
            if not self._has_news_for_cache or self._unread:
                return
            self._has_news_for_cache = False
            catalogue_key = listing_cache.key_of(self._checked_catalogue())
            runs = {
                run_id: {name: getattr(entry, name) for name in KEPT}
                for run_id, entry in self._entries.items()
                if entry.facts is not None and entry.is_settled and not entry.is_live
            }
            listing_cache.save(self.runs_dir, catalogue_key, runs)

    def _load_once(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        kept = listing_cache.load(self.runs_dir, listing_cache.key_of(self._checked_catalogue()))
        for run_id, known in kept.items():
            try:
                entry = Entry(**known, is_settled=True)
                entry.marks = tuple(None if mark is None else tuple(mark) for mark in known["marks"])
                is_whole = entry.row["run_id"] == run_id and entry.is_live is False
            except (LookupError, TypeError):
                continue
            if is_whole:
                self._entries[run_id] = entry

    def _checked_catalogue(self) -> Catalogue:
        """Return the catalogue; after a change, recompute what was derived from it."""
        catalogue = self._catalogue()
        if self._facts_of is not None and catalogue is not self._facts_of:
            for entry in self._entries.values():
                entry.facts, entry.is_settled = None, False
        self._facts_of = catalogue
        return catalogue

    def _read_all(self, catalogue: Catalogue) -> None:
        self._refreshed_all_at = time.monotonic()
        self._dir_mark = settled_stat_of(self._dir)
        try:
            names = {name for name in os.listdir(self.runs_dir) if not name.startswith(".")}
        except FileNotFoundError:
            names = set()
        for run_id in [run_id for run_id in self._entries if run_id not in names]:
            self._drop(run_id)
        half_read = [run_id for run_id in self._unread if run_id in self._entries]
        unread = []
        for run_id in names:
            if run_id in self._entries:
                self._read_if_changed(run_id, catalogue)
            else:
                mark = stat_of(f"{self._dir}/{run_id}/{WATCHED[0]}")
                if mark is not None:
                    unread.append((mark[2], run_id))
        self._unread = half_read + [run_id for _, run_id in sorted(unread)]

    def _read_if_changed(self, run_id: str, catalogue: Catalogue) -> None:
        if run_id in self._unread:
            return  # half read; its turn comes
        entry = self._entries[run_id]
        marks = stats_of(f"{self._dir}/{run_id}")
        if marks[0] is None:
            self._drop(run_id)
        elif not entry.is_as_read(marks):
            self._read(run_id, marks, catalogue)

    def _read_on(self, catalogue: Catalogue) -> None:
        """Read new runs, the newest first, for a limited time."""
        deadline = time.monotonic() + READ_AT_MOST_S
        while self._unread and time.monotonic() < deadline:
            run_id = self._unread.pop()
            marks = stats_of(f"{self._dir}/{run_id}")
            if marks[0] is not None:
                self._read(run_id, marks, catalogue)

    def _drop(self, run_id: str) -> None:
        if run_id in self._unread:
            self._unread.remove(run_id)
        entry = self._entries.pop(run_id, None)
        if entry is not None:
            self._gone[entry.row["run_id"]] = self._version, entry.row["owner"]
            self._has_news_for_cache = True

    def _read(self, run_id: str, marks: FileStats, catalogue: Catalogue) -> None:
        """Read a run's changes; if its row differs now, it gets the newest version."""
        run = RunDirectory(self.runs_dir / run_id)
        entry = self._entries.get(run_id) or Entry(row={"state": None, "owner": None})
        is_read = True
        try:
            run_ids.require_run_id(run_id)
            plain_files.refuse_links(run.path)
            if entry.facts is None or entry.marks[:2] != marks[:2]:
                entry.created_unix_s = run.config.stat().st_mtime
                config = run.read_config()
                entry.facts = facts_of(config, self._known_to(run, config, catalogue))
            digest = _unfolded(entry.folded)
            if digest.is_of_another_file(run.events):
                digest = Digest()
            is_read = digest.catch_up(run.events, READ_AT_MOST_S)
            entry.folded = digest.folded()
            row = row_of(run, entry.facts, digest, entry.created_unix_s)
        except FileNotFoundError:
            self._drop(run_id)
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            entry.facts = entry.folded = None
            row = unreadable_row(run, entry.created_unix_s, error)
        entry.marks, entry.is_settled = marks, is_read and are_settled(marks)
        if run_id in self._unread:
            self._unread.remove(run_id)
        if not is_read:
            self._unread.insert(0, run_id)  # the rest of a long file is read after the other runs
        if entry.row != row:
            entry.row, entry.version = row, self._version
        self._entries[run_id] = entry
        self._gone.pop(run_id, None)
        self._has_news_for_cache = True


def _unfolded(text: str | None) -> Digest:
    """Return the stored digest to continue with, or a new one if it cannot be read."""
    try:
        return Digest() if text is None else Digest.unfolded(text)
    except (ValueError, LookupError, TypeError):
        return Digest()
