"""What kind of data lies at a path: by its name's ending, and by how it begins."""

from __future__ import annotations

import difflib
import itertools
import os
import stat
from pathlib import Path

from trainers.data.dataset import IMAGE_CLASSIFICATION, LANGUAGE_MODELLING, DataOptions
from trainers.data.own.common import reading
from trainers.data.own.common.problems import Problems, quoted
from trainers.data.own.images import zip_checks
from trainers.data.own.images.classes import IMAGE_SUFFIXES
from trainers.data.own.images.image_folder import Images
from trainers.data.own.tables.table import TableData
from trainers.data.own.tables.table_rows import PARQUET_SUFFIXES, TABLE_SUFFIXES
from trainers.data.own.texts.plain_text import PlainText

TAKEN = "Taken are a folder or zip of images in class folders, a CSV, TSV or Parquet table, or a UTF-8 text."
NOT_TAKEN = {
    ".xlsx": "Save the sheet as CSV.",
    ".xls": "Save the sheet as CSV.",
    ".ods": "Save the sheet as CSV.",
    ".json": "Write it as CSV, one sample a row.",
    ".jsonl": "Write it as CSV, one sample a row.",
    ".pdf": "Save its text as a .txt file.",
    ".docx": "Save its text as a .txt file.",
    ".doc": "Save its text as a .txt file.",
    ".tar": "Unpack it and give the folder.",
    ".gz": "Unpack it and give what is in it.",
    ".tgz": "Unpack it and give the folder.",
    ".bz2": "Unpack it and give what is in it.",
    ".xz": "Unpack it and give what is in it.",
    ".7z": "Unpack it and give the folder.",
    ".rar": "Unpack it and give the folder.",
}
MAX_ENTRIES_COMPARED = 10_000
AnyKind = Images | TableData | PlainText


def data_path(options: DataOptions) -> Path:
    """Return the whole path of the data."""
    # Of a user who is not there "~" stays as it is; and links stay as they are.
    return Path(os.path.abspath(os.path.expanduser(options.path)))  # noqa: PTH100, PTH111


def recognise(options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return what can read the data, or None when nothing can; why is added to `problems`."""
    if not options.path or "\0" in options.path:
        problems.fault("the path", "no path is given.", "Give the path of your data on this machine.")
        return None
    path = data_path(options)
    if not _is_readable(path, problems):
        return None
    kind = _kind_of(path, options, problems)
    if kind is None:
        return None
    if isinstance(kind, Images) and options.task not in ("auto", IMAGE_CLASSIFICATION):
        problems.fault(
            "the task",
            f"{options.task.replace('_', ' ')} needs a file.",
            TAKEN,
            suggested={"data_task": "auto"},
        )
        return None
    if isinstance(kind, PlainText) and options.task not in ("auto", LANGUAGE_MODELLING):
        message = f"{options.task.replace('_', ' ')} cannot be learnt from running text."
        hint = "Choose auto, or give a table."
        problems.fault("the task", message, hint, suggested={"data_task": "auto"})
        return None
    return kind


def _is_readable(path: Path, problems: Problems) -> bool:
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind == stat.S_IFDIR:
            with os.scandir(path) as entries:
                next(entries, None)
            return True
        # Not to be opened: a pipe keeps whoever opens it waiting, and /dev/zero has no end.
        if kind != stat.S_IFREG:
            problems.fault(str(path), "it is neither a file nor a folder.", TAKEN)
            return False
        with path.open("rb") as file:
            # What the system makes up (/proc) has no size, whatever comes when it is read.
            if path.stat().st_size == 0 or not file.read(1):
                problems.fault(path.name, "the file is empty.", TAKEN)
                return False
    except FileNotFoundError:
        _tell_not_found(path, problems)
        return False
    except OSError as error:
        hint = "The user this page runs as must be allowed to read it."
        problems.fault(str(path), f"it cannot be read ({error.strerror}).", hint)
        return False
    return True


def _tell_not_found(path: Path, problems: Problems) -> None:
    """Record that there is nothing at a path, and what has nearly the same name."""
    near = next((parent for parent in path.parents if os.path.isdir(parent)), path.parent)  # noqa: PTH112
    hint = f"Paths are of the machine this page runs on. What is there: {near}."
    suggested = {}
    if (meant := _nearest(path, near)) is not None:
        hint = f"Did you mean {quoted(meant.name)}?"
        suggested = {"data_path": str(meant)}
    problems.fault(str(path), "there is nothing at this path.", hint, suggested=suggested)


def _nearest(path: Path, folder: Path) -> Path | None:
    """Return the path with its first wrong name corrected, if the folder has a similar one."""
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in itertools.islice(found, MAX_ENTRIES_COMPARED)]
    except OSError:
        return None
    wrong, *rest = path.relative_to(folder).parts
    by_lower_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wrong.lower(), by_lower_case, n=1)
    return folder.joinpath(by_lower_case[close[0]], *rest) if close else None


def _kind_of(path: Path, options: DataOptions, problems: Problems) -> AnyKind | None:
    suffix = path.suffix.lower()
    if path.is_dir():
        return _in_folder(path, options, problems)
    with path.open("rb") as file:
        start = file.read(4096)
    if suffix in NOT_TAKEN:
        problems.fault(path.name, f"files ending in {suffix} are not read.", NOT_TAKEN[suffix])
        return None
    # By its beginning: any file can have a zip at its end.
    if suffix == ".zip" or (start.startswith(zip_checks.STARTS) and suffix not in TABLE_SUFFIXES):
        return Images(path, options)
    if options.task == LANGUAGE_MODELLING and suffix not in PARQUET_SUFFIXES:
        return PlainText(path, options)
    if suffix in TABLE_SUFFIXES:
        return TableData(path, options)
    if start.startswith(b"PAR1"):
        problems.fault(
            path.name, "it is a Parquet file by its beginning.", "Name it so that it ends in .parquet."
        )
        return None
    if suffix in IMAGE_SUFFIXES:
        problems.fault(path.name, "one image is no data set.", "Give a folder with a folder for each class.")
        return None
    why = reading.why_not_text(start)
    if why is not None and "UTF-16" not in why[1] and "UTF-32" not in why[1]:
        problems.fault(path.name, "it is of no kind that can be read here.", TAKEN)
        return None
    return PlainText(path, options)


def _in_folder(path: Path, options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader of images, unless there is but one table or text in the folder: that is pointed at."""
    with os.scandir(path) as found:
        entries = [(entry.name, entry.is_dir()) for entry in found if not entry.name.startswith(".")]
    if not any(is_dir for _, is_dir in entries):
        suffixes = (*TABLE_SUFFIXES, ".txt", ".md", ".zip")
        fitting = sorted(name for name, _ in entries if name.lower().endswith(suffixes))
        if fitting:
            hint = f"Give the path of one file, such as {quoted(fitting[0])}."
            suggested = {"data_path": str(path / fitting[0])}
            message = "the folder holds tables or texts, not images."
            problems.fault(path.name, message, hint, suggested=suggested)
            return None
    return Images(path, options)
