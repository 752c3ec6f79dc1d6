"""Recognises the kind of data at a path by its suffix and its first bytes."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainers.contract.config.options import plain_path
from trainers.data.dataset import IMAGE_CLASSIFICATION, LANGUAGE_MODELLING, DataOptions
from trainers.data.own.cache import TemporaryFolder
from trainers.data.own.formats import AS_TABLE, NOT_TAKEN, WEB_PAGE, binary_format, is_json_file, text_format
from trainers.data.own.image_files import STARTS, is_image, source_of
from trainers.data.own.images import IMAGE_SUFFIXES, Images, Listed, by_file_names, table_beside
from trainers.data.own.problems import Problems, listed, quoted
from trainers.data.own.processes import check_time
from trainers.data.own.reading import ReadingError, find_encoding, text_chunks
from trainers.data.own.sources import OPENERS, PACKED_STARTS, DataFile, PackedFile, TextFolder, text_names
from trainers.data.own.table import TableData, listed_images
from trainers.data.own.table_file import (
    LIKE_A_NUMBER,
    PARQUET_SUFFIXES,
    SHEET_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    find_dialect,
)
from trainers.data.own.texts import PlainText
from trainers.files.plain_files import REPOSITORY

TAKEN = (
    "Taken are a folder or zip of images or texts in class folders, a table (CSV, TSV, Parquet, JSON "
    "Lines, Excel), or a text."
)
_NO_DATA = re.compile(r"(^|/)(read.?me|licen[cs]e|_success)[^/]*$")
PROSE_SUFFIXES = (".md", ".rst", ".tex", ".html", ".htm", ".xml", ".py", ".js", ".c", ".cpp", ".java", ".log")
MAX_ENTRIES_COMPARED = 10_000
LOOKED_AT_CHARACTERS = 400_000
MIN_TABLE_ROWS = 5
MARKS = b"\xef\xbb\xbf\xfe\xff\0"  # of an encoding, before the first letter
TABLE_SHARE = 0.9  # minimum share of lines with the same number of cells
# A line of an exported chat: 12.03.21, 14:05 - Anna: Hello
_CHAT = re.compile(
    r"\[?\d{1,4}[./-]\d{1,2}[./-]\d{2,4},? \d{1,2}:\d{2}(:\d{2})?( ?[AP]M)?(\]| -) [^:]{1,60}: "
)
AnyKind = Images | TableData | PlainText
ONLY_TASKS: dict[type, tuple[str, str]] = {
    Images: (IMAGE_CLASSIFICATION, "needs a file."),
    PlainText: (LANGUAGE_MODELLING, "cannot be learnt from running text."),
}


def data_path(options: DataOptions) -> Path:
    """Return the absolute path of the data."""
    # Unlike pathlib, these functions keep "~" of an unknown user and do not resolve links.
    return Path(os.path.abspath(os.path.expanduser(plain_path(options.path))))  # noqa: PTH100, PTH111


def recognise(options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader for the data, or None if there is none; the reason is added to `problems`."""
    if not plain_path(options.path) or "\0" in options.path:
        problems.fault("the path", "no path is given.", "Give the path of your data on this machine.")
        return None
    path = data_path(options)
    if not _is_readable(path, problems):
        return None
    kind = _kind_of(path, options, problems)
    task, message = ONLY_TASKS.get(type(kind), (options.task, ""))
    if options.task in ("auto", task):
        return kind
    message = f"{options.task.replace('_', ' ')} {message}"
    problems.fault("the task", message, "Choose auto, or give a table.", suggested={"data_task": "auto"})
    return None


def _is_readable(path: Path, problems: Problems) -> bool:
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind == stat.S_IFDIR:
            with os.scandir(path) as entries:
                next(entries, None)
            if REPOSITORY.is_relative_to(path):
                problems.fault(str(path), "this program is in it.", "Give the folder of your data only.")
                return False
            return True
        # Do not open other kinds of files: opening a pipe blocks, and /dev/zero is endless.
        if kind != stat.S_IFREG:
            problems.fault(str(path), "it is neither a file nor a folder.", TAKEN)
            return False
        with path.open("rb") as file:
            # Files in /proc have size 0 although they have content.
            if path.stat().st_size == 0 or not file.read(1):
                problems.fault(path.name, "the file is empty.", TAKEN)
                return False
    except FileNotFoundError:
        _report_not_found(path, problems)
        return False
    except OSError as error:
        hint = "The user this page runs as must be allowed to read it."
        problems.fault(str(path), f"it cannot be read ({error.strerror}).", hint)
        return False
    return True


def _report_not_found(path: Path, problems: Problems) -> None:
    """Record a fault for a path that does not exist, and suggest a similar one."""
    near = next((parent for parent in path.parents if os.path.isdir(parent)), path.parent)  # noqa: PTH112
    suggested = {}
    if found := re.search(r"(?:^|/)(?:([A-Za-z]:[\\/]|\\\\)|[a-z][a-z0-9]+:/)", str(path)):
        # A path of the user's own computer, or an address
        what = "a path of Windows" if found[1] else "an address on the network"
        hint = f"It is {what}. Drop the file on the form, or copy it to the machine this page runs on."
    elif near.is_relative_to(REPOSITORY):
        # A relative path is resolved in the program's folder, whose files are not the user's data.
        hint = "Give the whole path, beginning with / or ~: paths are of the machine this page runs on."
    else:
        hint = f"Paths are of the machine this page runs on. What is there: {near}."
        meant = _nearest(path, near)
        if meant is not None and not meant.is_relative_to(REPOSITORY):
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


def _kind_of(
    path: Path, options: DataOptions, problems: Problems, packed: PackedFile | None = None
) -> AnyKind | None:
    """Return a reader for a file or folder.

    Args:
        packed: the compressed file whose beginning `path` is.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        return _in_files(path, options, problems)
    with path.open("rb") as opened:
        start = opened.read(4096)
    file = packed or DataFile(path)
    message, hint = _why_not_read(start, suffix)
    packing = next((kind for magic, kind in PACKED_STARTS.items() if start.startswith(magic)), "")
    # Check the first bytes, because any file can have a zip appended to it.
    is_zip = start.startswith(STARTS) and suffix not in TABLE_SUFFIXES
    if not message and packed and (is_zip or packing):
        message, hint = "it is compressed twice.", "Unpack it, and choose the file inside."
    elif not message and packing:
        return _unpacked(PackedFile(path, packing), options, problems)
    elif not message and suffix in OPENERS:
        message = f"it does not begin like a file ending in {suffix}."
        hint = "It may be incomplete: copy or create it again."
    elif not message and (is_zip or suffix == ".zip"):
        return _in_files(path, options, problems)
    elif not message and suffix in IMAGE_SUFFIXES:
        message, hint = "one image is no data set.", "Give a folder with a folder for each class."
    if message:
        problems.fault(path.name, message, hint)
        return None
    if options.task == LANGUAGE_MODELLING and suffix not in (*PARQUET_SUFFIXES, *SHEET_SUFFIXES):
        return PlainText(file, options)
    is_json = start.lstrip(MARKS + b" \t\r\n")[:1] in (b"[", b"{")
    if suffix in TABLE_SUFFIXES and (suffix != ".json" or is_json):
        return _table(file, options, problems)
    try:
        encoding = find_encoding(path)
        text = next(text_chunks(path, encoding, LOOKED_AT_CHARACTERS), "")
    except ReadingError as error:
        message = f"it is of no kind that can be read here: {error.message}"
        problems.fault(path.name, message, TAKEN, line=error.line)
        return None
    is_tabular = is_json_file(path) or text_format(text) or _looks_like_table(text)
    is_tabular = is_tabular and suffix not in PROSE_SUFFIXES
    return _table(file, options, problems) if is_tabular else PlainText(file, options)


def _why_not_read(start: bytes, suffix: str) -> tuple[str, str]:
    """Return the message and hint for a file of a known format that is not read; empty for other files."""
    if start.startswith(b"PAR1") and suffix not in PARQUET_SUFFIXES:
        return "it is a Parquet file by its beginning.", "Name it so that it ends in .parquet."
    if start.startswith(STARTS) and suffix in TEXT_SUFFIXES:
        return "it is a spreadsheet or a zip by its beginning.", "Name it so that it ends in .xlsx or .zip."
    if suffix in NOT_TAKEN:
        return f"files ending in {suffix} are not read.", NOT_TAKEN[suffix]
    name = binary_format(start)
    if name and suffix not in PROSE_SUFFIXES and (name != WEB_PAGE or suffix in TABLE_SUFFIXES):
        alike = ".tar" if name.endswith("archive") else ".pdf" if name.endswith(("PDF", "document")) else ""
        hint = NOT_TAKEN.get(alike, AS_TABLE)
        return f"it is {name} by its beginning, which is not read.", hint
    return "", ""


def _unpacked(packed: PackedFile, options: DataOptions, problems: Problems) -> AnyKind | None:
    with contextlib.closing(TemporaryFolder("beginning")) as folder:
        return _kind_of(packed.beginning(folder.path), options, problems, packed)


def _in_files(path: Path, options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader for a folder or zip: its images, its texts of classes, or its only table or text."""
    is_folder = path.is_dir()
    names = source_of(path, Problems()).files
    check_time()
    tables = [name for name in names if name.lower().endswith(TABLE_SUFFIXES)]
    # A picture or two next to a table are not the data.
    if sum(name.lower().endswith(IMAGE_SUFFIXES) for name in names) > min(2, len(tables)):
        return Images(path, options, labels=_labels_beside(path, names, options, problems))
    texts = text_names(names)
    if len(texts) > len(tables) and _have_classes(path, texts):
        return TableData(TextFolder(path, skip=options.skip_unreadable), options)
    found = tables or [name for name in names if not _NO_DATA.search(name.lower())]
    chosen = found if len(found) == 1 else [name for name in tables if "train" in name.lower()]
    if len(chosen) == 1:
        if len(found) > 1:
            others = listed([quoted(name) for name in found if name != chosen[0]])
            problems.note(path.name, f"{quoted(chosen[0])} is read; there are also {others}.")
        if not is_folder:
            return _unpacked(PackedFile(path, "", chosen[0]), options, problems)
        inner = path / chosen[0]
        return _kind_of(inner, options, problems) if _is_readable(inner, problems) else None
    plain = tables or [name for name in found if name.lower().endswith((".txt", ".text", ".md"))]
    if not plain:
        return Images(path, options)
    plain.sort(key=lambda name: "train" not in name.lower())
    what = "tables" if tables else "texts"
    message = f"it holds {len(plain):,} {what}: {listed(list(map(quoted, plain)))}."
    hint = "Give the path of one of them." if is_folder else "Unpack it and give one of them."
    hint += "" if tables else " Or put the texts of each class into a folder of their own."
    suggested = {"data_path": str(path / plain[0])} if is_folder else {}
    problems.fault(path.name, message, hint, suggested=suggested)
    return None


def _labels_beside(
    path: Path, files: Sequence[str], options: DataOptions, problems: Problems
) -> Listed | None:
    """Return the labels of images in one folder from a table next to them, or None without such a table.

    The table is not read if the names of the images begin with classes, unless its label column is chosen.
    """
    table_file = table_beside(files)
    if table_file is None or (by_file_names(table_file[1]) and not options.label_column):
        return None
    table, names = table_file
    is_folder, tried = path.is_dir(), Problems()
    if is_folder and not _is_readable(path / table, tried):
        return None
    file = DataFile(path / table) if is_folder else PackedFile(path, "", table)
    labels = listed_images(file, names, options, tried)
    if labels is not None:
        problems.add(tried)
        problems.note(path.name, f"the labels of the images are in {quoted(table)}.")
    return labels


def _have_classes(path: Path, texts: Sequence[str]) -> bool:
    """Return True for texts in several folders or with classes in their names."""
    if len({name.rpartition("/")[0] for name in texts if "/" in name}) < 2 and not by_file_names(texts):
        return False
    source = source_of(path, Problems())
    sample = texts[:: -(-len(texts) // 20)]
    return not any(is_image(source, name) for name in sample if "." not in name.rpartition("/")[2])


def _looks_like_table(text: str) -> bool:
    """Return True if a text with an unknown suffix is more likely a table than prose."""
    dialect = find_dialect(text)
    if dialect is None or dialect.share < TABLE_SHARE or text.count("\n") < MIN_TABLE_ROWS:
        return False
    if all(map(_CHAT.match, text.split("\n", 5)[1:5])):
        return False
    rows = [row for row in dialect.reader(text.split("\n")[:500]) if len(row) == dialect.num_cells]
    columns = [[cell.strip() for cell in cells] for cells in zip(*rows, strict=True) if any(cells)]
    share_of_numbers = [
        sum(LIKE_A_NUMBER.fullmatch(cell) is not None for cell in cells) / len(cells) for cells in columns
    ]
    has_numbers = any(share > 0.8 for share in share_of_numbers)
    if any(all(cell.lower().endswith(IMAGE_SUFFIXES) for cell in cells) for cells in columns):
        return True
    if dialect.delimiter in (" ", ":"):
        return sum(share > 0.8 for share in share_of_numbers) >= max(2, len(columns) / 2)
    # A column of few repeated values probably has labels; prose has no such column.
    has_labels = any(len(set(cells)) <= 0.2 * len(cells) and max(map(len, cells)) < 40 for cells in columns)
    return has_numbers or has_labels or (dialect.delimiter == "\t" and dialect.share > 0.98)


def _table(file: DataFile, options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader for the table, or for the images listed in it if their folder is given."""
    if not options.images_path:
        return TableData(file, options)
    folder = data_path(replace(options, path=options.images_path))
    if not folder.is_dir():
        problems.fault(str(folder), "there is no folder of images at this path.", "Give their folder.")
        return None
    labels = listed_images(file, folder, options, problems)
    return None if labels is None else Images(folder, options, labels=labels)
