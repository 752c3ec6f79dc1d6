"""The list of runs, with names, notes and tags."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

from ddp_gui.auth import rights
from ddp_gui.events.event_reader import Digest
from ddp_gui.http.shell import visible
from ddp_gui.plan import plan
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.plan.own_data import OwnDataInspector
from trainers.contract import events, rundir
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.files import plain_files, private_files, typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import (
    WATCHED,
    FileStat,
    FileStats,
    are_settled,
    settled_stat_of,
    stat_of,
    stats_of,
)

FILE = "notes.json"
IMPORTED_FILE = "imported.json"
MAX_NAME = 200
MAX_TAGS = 20
MAX_TAG = 40
MAX_NOTE = 10_000


@dataclass(frozen=True, kw_only=True)
class RunNotes:
    """A user's annotations of a run; an empty name means the configuration's name."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(run: RunDirectory) -> RunNotes:
    """Read a run's annotations; empty if the file is missing or invalid."""
    try:
        raw = read_json(run.path / FILE)
    except (OSError, ValueError):
        return RunNotes()
    notes = RunNotes()
    for key in ("name", "tags", "note"):
        try:
            notes = change_notes(notes, **{key: raw[key]})
        except (ValueError, LookupError, TypeError):
            continue
    return notes


def write_notes(run: RunDirectory, notes: RunNotes) -> None:
    """Write a run's annotations.

    Raises:
        OSError: if the run's directory cannot be written.
    """
    write_json_atomically(run.path / FILE, asdict(notes))


def change_notes(
    notes: RunNotes, *, name: str | None = None, tags: Sequence[str] | None = None, note: str | None = None
) -> RunNotes:
    """Return the annotations with these changes; None leaves a value unchanged.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """
    if name is not None:
        notes = replace(notes, name=_one_line("name", name, MAX_NAME))
    if tags is not None:
        notes = replace(notes, tags=_parse_tags(tags))
    if note is not None:
        notes = replace(notes, note=_text("note", note, MAX_NOTE))
    return notes


def shown_name(run: RunDirectory, config_name: str) -> dict[str, Any]:
    """Return a run's display name, tags and note."""
    notes = read_notes(run)
    return asdict(notes) | {"name": notes.name or config_name or run.run_id, "tags": list(notes.tags)}


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The origin of an imported run, and the comparison of its files with the hashes in its zip.

    Attributes:
        origin: the run's id on the machine that packed it; the name of the zip if it has no hashes.
        packed_unix_s: when the zip was made; None if it has no hashes.
        differences: sentences about the first files that differ.
    """

    origin: str
    packed_unix_s: float | None = None
    imported_unix_s: float
    result: Literal["as recorded", "differs", "no hashes"]
    differences: tuple[str, ...] = ()
    num_differences: int = 0

    @property
    def result_text(self) -> str:
        """Result of the comparison as a clause."""
        if self.result == "differs":
            return f"{self.num_differences:,} file{'s differ' if self.num_differences > 1 else ' differs'}"
        return "all files as recorded" if self.result == "as recorded" else "no hashes to compare with"


def read_imported(run: RunDirectory) -> dict[str, Any] | None:
    """Return the origin of an imported run with the check's result as `words`; None for all other runs."""
    try:
        imported = typed.read(Imported, read_json(run.path / IMPORTED_FILE), ignores_unknown=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        imported = Imported(origin="unknown", imported_unix_s=0.0, result="no hashes")
    return asdict(imported) | {"differences": list(imported.differences), "words": imported.result_text}


def _parse_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ValueError(f"tags is {_short_repr(tags)}; allowed: a list of texts")
    unique_tags = dict.fromkeys(_one_line("tags", tag, MAX_TAG) for tag in tags)
    if any("," in tag for tag in unique_tags):
        raise ValueError(f"tags is {_short_repr(tags)}; allowed: texts without a comma")
    unique_tags.pop("", None)
    if len(unique_tags) > MAX_TAGS:
        raise ValueError(f"tags are {len(unique_tags)}; allowed: at most {MAX_TAGS}")
    return tuple(unique_tags)


def _one_line(field: str, value: Any, max_length: int) -> str:
    text = _text(field, value, max_length)
    if any(ord(character) < 32 or character == "\x7f" for character in text):
        raise ValueError(f"{field} is {_short_repr(value)}; allowed: one line of text")
    return text


def _text(field: str, value: Any, max_length: int) -> str:
    if not isinstance(value, str) or len(value.strip()) > max_length:
        raise ValueError(
            f"{field} is {_short_repr(value)}; allowed: a text of at most {max_length:,} characters"
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{field} contains half a surrogate pair; allowed: valid Unicode")
    return value.strip()


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


Facts = dict[str, Any]


def catalogue_for_run(
    run: RunDirectory, config: Config, catalogue: Catalogue, own_data: OwnDataInspector
) -> Catalogue:
    """Return the catalogue with the run's data set as recorded at its start, or as inspected."""
    if config.dataset in catalogue.own_data:
        inspection = own_data.find_cached(config)
        if inspection is not None and inspection.dataset is not None:
            catalogue = catalogue.with_dataset(inspection.dataset, inspection.counts)
    return plan.with_recorded_data(run, catalogue)


def config_facts(config: Config, catalogue: Catalogue) -> Facts:
    """Return the columns of the list that follow from a configuration."""
    model, dataset = catalogue.models.get(config.model), catalogue.datasets.get(config.dataset)
    return {
        "config_name": config.name,
        "model": config.model,
        "model_label": model.label if model else config.model,
        "dataset": config.dataset,
        "dataset_label": dataset_label(config, catalogue),
        "task": None if config.is_script or dataset is None else dataset.task,
        "strategy": config.strategy,
        "strategy_label": strategy_label(config, catalogue),
        "nproc_per_node": config.nproc_per_node,
        "mistake": find_mistake(config, catalogue),
        "expected_steps": total_steps(config, catalogue),
    }


def runs_text(count: int) -> str:
    """Return a number of runs as text."""
    return "1 run" if count == 1 else f"{count} runs"


def strategy_label(config: Config, catalogue: Catalogue) -> str:
    """Return the display name of a run's strategy, or of a script."""
    if config.is_script:
        return "own script"
    strategy = catalogue.strategies.get(config.strategy)
    return strategy.label if strategy else config.strategy


def find_mistake(config: Config, catalogue: Catalogue) -> dict[str, str] | None:
    """Return name, label and description of a run's deliberate mistake; None without one."""
    if not config.is_broken_on_purpose:
        return None
    mistake = catalogue.mistakes.get(config.mistake)
    return {
        "name": config.mistake,
        "label": mistake.label if mistake else config.mistake,
        "description": mistake.description if mistake else "A mistake that is not installed on this machine.",
    }


def start_text(config: Config, start: Mapping[str, Any] | None) -> str:
    """Return what a run inherited from another run's checkpoint, as text; empty for a new model.

    Args:
        start: `start` of the run's `plan` event; None before that event.
    """
    if not config.start_from:
        return ""
    run_id, _, step = config.start_from.rpartition("/")
    text = f"started from run {run_id}, step {int(step):,}"
    if start is None or not start["replaced"]:
        return text if start is None else f"{text}, with all its weights"
    before, now = start["num_classes_before"], start["num_classes"]
    change = f"{before:,} → {now:,} classes" if before != now else "other classes"
    return f"{text}; last layer new: {change}"


def dataset_label(config: Config, catalogue: Catalogue) -> str:
    """Return the display name of a run's data set; for own data, the name of the file or folder."""
    if config.is_script:
        return config.script
    if config.data_path and config.dataset in catalogue.own_data:
        return Path(config.data_path).name
    dataset = catalogue.datasets.get(config.dataset)
    return dataset.label if dataset else config.dataset


def total_steps(config: Config, catalogue: Catalogue) -> int | None:
    """Return the expected number of steps; None if neither the data set nor a limit is known."""
    dataset = catalogue.datasets.get(config.dataset)
    strategy = catalogue.strategies.get(config.strategy)
    if dataset is None or strategy is None:
        return config.max_steps
    num_replicas = config.num_replicas(strategy.ranks_per_replica)
    return config.num_steps(dataset.num_train, num_replicas)


Row = dict[str, Any]


def make_row(run: RunDirectory, facts: Facts, digest: Digest, created_unix_s: float) -> Row:
    """Return a run's row with its current state."""
    status, columns = liveness.read_status(run), dict(facts)
    expected_steps, config_name = columns.pop("expected_steps"), columns.pop("config_name")
    return {
        "run_id": run.run_id,
        **shown_name(run, config_name),
        "owner": rights.owner_of(run),
        "imported": read_imported(run),
        # Use the time of the first event, so that a copied run keeps its age.
        "created_unix_s": digest.began_unix_s or created_unix_s,
        "took_s": digest.took_s,
        "state": status.state,
        "error": status.error,
        "detail": liveness.detail(run, status),
        **columns,
        "device": digest.device_kind,
        "step": digest.step,
        "num_steps": digest.num_steps or expected_steps,
        "loss": digest.loss,
        "best_metric": digest.best,
        "curve": digest.curve.encode(),
    }


def unreadable_row(run: RunDirectory, created_unix_s: float, error: Exception) -> Row:
    """Return the row of an unreadable run, with the reason."""
    unknown = (
        "took_s", "model", "model_label", "dataset", "dataset_label", "task", "strategy", "strategy_label",
        "nproc_per_node", "mistake", "device", "num_steps", "loss", "best_metric", "curve",
    )  # fmt: skip
    return {
        "run_id": visible(run.run_id),
        **shown_name(run, visible(run.run_id)),
        "owner": rights.owner_of(run),
        "imported": read_imported(run),
        "created_unix_s": created_unix_s,
        "step": 0,
        **dict.fromkeys(unknown),
        "state": "lost",
        "detail": None,
        "error": f"This run cannot be read. {_sentence(error)}",
    }


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


# Increment when the meaning of the cached content changes.
FORMAT = 4


def cache_path(runs_dir: Path) -> Path:
    """Return the path of the cache file; its folder's name is not a valid run id."""
    return runs_dir / ".cache" / "list.json"


def hash_catalogue(catalogue: Catalogue) -> str:
    """Return a hash of the catalogue, from which labels and lengths are derived."""
    return hashlib.sha256(orjson.dumps(catalogue.raw, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()


def load_listing(runs_dir: Path, catalogue_key: str) -> dict[str, Any]:
    """Return the cached entries by run id; empty if the cache is unusable."""
    try:
        with private_files.open_own(cache_path(runs_dir)) as file:
            cached = orjson.loads(file.read())
        fits = cached["format"] == FORMAT and cached["catalogue"] == catalogue_key
        runs = cached["runs"]
    except private_files.ForeignFileError as error:
        print(f"{error}. All runs are read again.", flush=True)
        return {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return runs if fits and isinstance(runs, dict) else {}


def save_listing(runs_dir: Path, catalogue_key: str, runs: dict[str, Any]) -> None:
    """Replace the cache.

    Raises:
        OSError: if it cannot be written.
        ForeignFileError: if another user owns the folder.
    """
    path = cache_path(runs_dir)
    private_files.make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # The file is not synced: if a power failure loses it, only the next start is slow.
        temporary.write_bytes(orjson.dumps({"format": FORMAT, "catalogue": catalogue_key, "runs": runs}))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# Interval of a full refresh: ended runs rarely change, and changes by this page itself are known.
REFRESH_ALL_EVERY_S = 30.0
# Time limit for reading per request; later requests read the rest.
MAX_READ_S = 0.3


@dataclass
class Entry:
    """Data of one run, and the state of its files when they were read.

    `folded` is the serialised digest of the run's events; only live runs need it in memory.
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
        """True if the run is live: its state depends on a lock and can change without a file change."""
        return self.row["state"] in events.LIVE_STATES

    def is_up_to_date(self, marks: FileStats) -> bool:
        """Return True if the entry is up to date."""
        return self.is_settled and not self.is_live and self.marks == marks


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes since a version; `num_unread` runs have not been read yet."""

    version: int
    is_whole: bool
    rows: list[Row]
    # Owners of deleted runs, by run id.
    gone: dict[str, str | None]
    num_unread: int


CACHED_FIELDS = ("row", "marks", "facts", "folded", "created_unix_s")


class Listing:
    """The rows of all runs in a directory; thread-safe.

    Each refresh has a version. A page sends the last version that it has received, and gets the rows that
    changed since. The files of an ended run are read again only if their stat has changed; a live run is read
    at each refresh.
    """

    def __init__(
        self,
        runs_dir: Path,
        catalogue: Callable[[], Catalogue],
        catalogue_for_run: Callable[[RunDirectory, Config, Catalogue], Catalogue],
    ) -> None:
        self.runs_dir = runs_dir
        self._dir = str(runs_dir)
        self._catalogue = catalogue
        self._catalogue_for_run = catalogue_for_run
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._gone: dict[str, tuple[int, str | None]] = {}
        self._unread: list[str] = []
        # Runs that this page has changed and the next request must read.
        self._changed: set[str] = set()
        # After a restart every version is larger than any earlier one, so pages request all rows again.
        self._version = self._first_version = int(time.time() * 1000)
        self._refreshed_all_at = -REFRESH_ALL_EVERY_S
        self._dir_mark: FileStat | None = None
        self._is_loaded = False
        self._is_cache_outdated = False
        self._facts_catalogue: Catalogue | None = None

    def rows(self) -> list[Row]:
        """Return the current rows of all runs, most recent first."""
        self.refresh(reads_all=True)
        while self._unread:
            self.refresh()
        with self._lock:
            rows = [
                {name: value for name, value in entry.row.items() if name != "curve"}
                for entry in self._entries.values()
            ]
        return sorted(rows, key=lambda row: (-row["created_unix_s"], row["run_id"]))

    def row(self, run_id: str) -> Row:
        """Return the current row of a run.

        Raises:
            ValueError: if the run does not exist.
        """
        while True:  # a long file takes several iterations, between which other threads get the lock
            with self._lock:
                self._load_once()
                self._version += 1
                self._read(run_id, self._current_catalogue())
                if run_id not in self._entries:
                    raise rundir.no_such_run(run_id)
                if run_id not in self._unread:
                    return self._entries[run_id].row

    def changes(self, since: int = -1) -> Changes:
        """Return the changes since a version; all rows if the version is unknown."""
        with self._lock:
            is_whole = not self._first_version <= since <= self._version
            self.refresh()
            since_version = self._first_version if is_whole else since
            return Changes(
                version=self._version,
                is_whole=is_whole,
                rows=[
                    entry.row for entry in self._entries.values() if is_whole or entry.version > since_version
                ],
                gone={
                    run_id: owner
                    for run_id, (version, owner) in self._gone.items()
                    if version > since_version
                },
                num_unread=len(self._unread),
            )

    def invalidate(self) -> None:
        """Make all pages request all rows again, because the visibility of runs has changed."""
        with self._lock:
            self._version += 1
            self._first_version = self._version
            self._gone.clear()

    def read_again(self, run_ids: Iterable[str]) -> None:
        """Mark runs that this page has changed, so that the next request reads them."""
        self._changed.update(run_ids)

    def refresh(self, *, reads_all: bool = False) -> None:
        """Detect changes: in live runs at each call, in other runs at intervals or with `reads_all`."""
        requested_at = time.monotonic()
        with self._lock:
            if reads_all and self._refreshed_all_at > requested_at and not (self._unread or self._changed):
                return  # concurrent requests share one refresh that began after they arrived
            self._load_once()
            self._version += 1
            is_due = reads_all or time.monotonic() - self._refreshed_all_at > REFRESH_ALL_EVERY_S
            if is_due or self._dir_mark is None or self._dir_mark != settled_stat_of(self._dir):
                catalogue = self._current_catalogue()
                self._read_all(catalogue)
            else:
                catalogue = self._facts_catalogue or self._current_catalogue()
                for run_id, entry in list(self._entries.items()):
                    if entry.is_live or not entry.is_settled:
                        self._read(run_id, catalogue, only_if_changed=True)
            while self._changed:
                self._read(self._changed.pop(), catalogue)
            self._read_unread(catalogue)

    def save(self) -> None:
        """Store the rows for the next start of the page if they have changed.

        Raises:
            OSError, ForeignFileError: if it cannot be written; the next start then reads all runs again.
        """
        with self._lock:
            if not self._is_cache_outdated or self._unread:
                return
            self._is_cache_outdated = False
            catalogue_key = hash_catalogue(self._current_catalogue())
            runs = {
                run_id: {name: getattr(entry, name) for name in CACHED_FIELDS}
                for run_id, entry in self._entries.items()
                if entry.facts is not None and entry.is_settled and not entry.is_live
            }
            save_listing(self.runs_dir, catalogue_key, runs)

    def _load_once(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        cached = load_listing(self.runs_dir, hash_catalogue(self._current_catalogue()))
        for run_id, values in cached.items():
            try:
                entry = Entry(**values, is_settled=True)
                entry.marks = tuple(None if mark is None else tuple(mark) for mark in values["marks"])
                is_whole = entry.row["run_id"] == run_id and entry.is_live is False
            except (LookupError, TypeError):
                continue
            if is_whole:
                self._entries[run_id] = entry

    def _current_catalogue(self) -> Catalogue:
        """Return the catalogue. If it has changed, mark everything derived from it as outdated."""
        catalogue = self._catalogue()
        if self._facts_catalogue is not None and catalogue is not self._facts_catalogue:
            for entry in self._entries.values():
                entry.facts, entry.is_settled = None, False
        self._facts_catalogue = catalogue
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
        partly_read = [run_id for run_id in self._unread if run_id in self._entries]
        unread = []
        for run_id in names:
            if run_id in self._entries:
                self._read(run_id, catalogue, only_if_changed=True)
            else:
                mark = stat_of(f"{self._dir}/{run_id}/{WATCHED[0]}")
                if mark is not None:
                    unread.append((mark[2], run_id))
        self._unread = partly_read + [run_id for _, run_id in sorted(unread)]

    def _read_unread(self, catalogue: Catalogue) -> None:
        """Read new runs, most recent first, for a limited time."""
        deadline = time.monotonic() + MAX_READ_S
        while self._unread and time.monotonic() < deadline:
            self._read(self._unread.pop(), catalogue)

    def _drop(self, run_id: str) -> None:
        if run_id in self._unread:
            self._unread.remove(run_id)
        entry = self._entries.pop(run_id, None)
        if entry is not None:
            self._gone[entry.row["run_id"]] = self._version, entry.row["owner"]
            self._is_cache_outdated = True

    def _read(self, run_id: str, catalogue: Catalogue, *, only_if_changed: bool = False) -> None:
        """Read a run's changes. If its row differs, set its version to the current one."""
        if only_if_changed and run_id in self._unread:
            return  # partly read; `_read_unread` continues it
        marks = stats_of(f"{self._dir}/{run_id}")
        if marks[0] is None:
            self._drop(run_id)
            return
        entry = self._entries.get(run_id) or Entry(row={"state": None, "owner": None})
        if only_if_changed and entry.is_up_to_date(marks):
            return
        run, is_complete = RunDirectory(self.runs_dir / run_id), True
        try:
            rundir.require_run_id(run_id)
            plain_files.refuse_links(run.path)
            if entry.facts is None or entry.marks[:2] != marks[:2]:
                entry.created_unix_s = run.config.stat().st_mtime
                config = run.read_config()
                entry.facts = config_facts(config, self._catalogue_for_run(run, config, catalogue))
            digest = _deserialise_digest(entry.folded)
            if digest.is_of_another_file(run.events):
                digest = Digest()
            is_complete = digest.catch_up(run.events, MAX_READ_S)
            entry.folded = digest.serialise()
            row = make_row(run, entry.facts, digest, entry.created_unix_s)
        except FileNotFoundError:
            self._drop(run_id)
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            entry.facts = entry.folded = None
            row = unreadable_row(run, entry.created_unix_s, error)
        entry.marks, entry.is_settled = marks, is_complete and are_settled(marks)
        if run_id in self._unread:
            self._unread.remove(run_id)
        if not is_complete:
            self._unread.insert(0, run_id)  # the rest of a long file is read after all other runs
        if entry.row != row:
            entry.row, entry.version = row, self._version
        self._entries[run_id] = entry
        self._gone.pop(run_id, None)
        self._is_cache_outdated = True


def _deserialise_digest(text: str | None) -> Digest:
    """Deserialise a digest to continue with it; return a new one if it is invalid."""
    try:
        return Digest() if text is None else Digest.deserialise(text)
    except (ValueError, LookupError, TypeError):
        return Digest()
