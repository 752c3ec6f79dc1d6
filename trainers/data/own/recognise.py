"""Recognises the kind of data at a path by its suffix and its first bytes."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trainers.contract.config.options import plain_path
from trainers.data.dataset import IMAGE_CLASSIFICATION, LANGUAGE_MODELLING, DataOptions
from trainers.data.own import sources, table_file
from trainers.data.own.cache import TemporaryFolder
from trainers.data.own.formats import AS_TABLE, WEB_PAGE, binary_format, is_json_file, text_format
from trainers.data.own.image_files import STARTS, ZipSource, is_ignored, is_image
from trainers.data.own.images import IMAGE_SUFFIXES, Images, by_file_names, table_beside
from trainers.data.own.problems import Problems, listed, quoted
from trainers.data.own.processes import check_time, walk
from trainers.data.own.reading import ReadingError, find_encoding, text_chunks
from trainers.data.own.table import TableData, listed_images
from trainers.data.own.texts import PlainText
from trainers.files.plain_files import REPOSITORY

TAKEN = (
    "Taken are a folder or zip of images or texts in class folders, a table (CSV, TSV, Parquet, JSON "
    "Lines, Excel), or a text."
)
NOT_TAKEN = {
    **dict.fromkeys((".pdf", ".docx", ".doc"), "Save its text as a .txt file."),
    **dict.fromkeys((".tar", ".tgz", ".7z", ".rar"), "Unpack it and give the folder."),
    **dict.fromkeys((".zst", ".lz4", ".z"), "Unpack it, and choose the file inside."),
}
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
    if near.is_relative_to(REPOSITORY):
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
    path: Path, options: DataOptions, problems: Problems, packed: sources.PackedFile | None = None
) -> AnyKind | None:
    """Return a reader for a file or folder.

    Args:
        packed: the compressed file whose beginning `path` is.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        return _in_folder(path, options, problems)
    with path.open("rb") as opened:
        start = opened.read(4096)
    file = packed or sources.DataFile(path)
    message, hint = _why_not_read(start, suffix)
    packing = next((kind for magic, kind in sources.PACKED_STARTS.items() if start.startswith(magic)), "")
    # Check the first bytes, because any file can have a zip appended to it.
    is_zip = start.startswith(STARTS) and suffix not in table_file.TABLE_SUFFIXES
    if not message and packed and (is_zip or packing):
        message, hint = "it is compressed twice.", "Unpack it, and choose the file inside."
    elif not message and packing:
        return _unpacked(sources.PackedFile(path, packing), options, problems)
    elif not message and suffix in sources.OPENERS:
        message = f"it does not begin like a file ending in {suffix}."
        hint = "It may be incomplete: copy or create it again."
    elif not message and (is_zip or suffix == ".zip"):
        return _in_zip(path, options, problems)
    elif not message and suffix in IMAGE_SUFFIXES:
        message, hint = "one image is no data set.", "Give a folder with a folder for each class."
    if message:
        problems.fault(path.name, message, hint)
        return None
    if options.task == LANGUAGE_MODELLING and suffix not in table_file.BINARY_SUFFIXES:
        return PlainText(file, options)
    is_json = start.lstrip(MARKS + b" \t\r\n")[:1] in (b"[", b"{")
    if suffix in table_file.TABLE_SUFFIXES and (suffix != ".json" or is_json):
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
    if start.startswith(b"PAR1") and suffix not in table_file.PARQUET_SUFFIXES:
        return "it is a Parquet file by its beginning.", "Name it so that it ends in .parquet."
    if start.startswith(STARTS) and suffix in table_file.TEXT_SUFFIXES:
        return "it is a spreadsheet or a zip by its beginning.", "Name it so that it ends in .xlsx or .zip."
    if suffix in NOT_TAKEN:
        return f"files ending in {suffix} are not read.", NOT_TAKEN[suffix]
    name = binary_format(start)
    if name and suffix not in PROSE_SUFFIXES and (name != WEB_PAGE or suffix in table_file.TABLE_SUFFIXES):
        hint = NOT_TAKEN[".pdf"] if name == "a PDF" else AS_TABLE
        return f"it is {name} by its beginning, which is not read.", hint
    return "", ""


def _unpacked(packed: sources.PackedFile, options: DataOptions, problems: Problems) -> AnyKind | None:
    with contextlib.closing(TemporaryFolder("beginning")) as folder:
        return _kind_of(packed.beginning(folder.path), options, problems, packed)


def _in_zip(path: Path, options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader for the table in a zip, its only file, or its images or texts."""
    names = ZipSource(path, Problems()).files
    if any(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
        return _listed_in_zip(path, names, options, problems) or Images(path, options)
    tables = [name for name in names if name.lower().endswith(table_file.TABLE_SUFFIXES)]
    found = tables or [
        name for name in names if not re.search(r"((read.?me|licen[cs]e)[^/]*|\.zip)$", name.lower())
    ]
    chosen = found if len(found) == 1 else [name for name in tables if "train" in name.lower()]
    if len(chosen) == 1:
        if len(found) > 1:
            others = listed([quoted(name) for name in found if name != chosen[0]])
            problems.note(path.name, f"{quoted(chosen[0])} is read; there are also {others}.")
        return _unpacked(sources.PackedFile(path, "", chosen[0]), options, problems)
    if tables:
        message = f"it holds {len(found):,} tables: {listed(list(map(quoted, found)))}."
        problems.fault(path.name, message, "Unpack it and give one of them.")
        return None
    return _texts_in(path, names, options) or Images(path, options)


def _listed_in_zip(
    path: Path, files: Sequence[str], options: DataOptions, problems: Problems
) -> Images | None:
    """Return a reader for a zip of images in one folder and a table of their labels; None for other zips.

    The table is not read if the names of the images begin with classes, unless its label column is chosen.
    """
    found = table_beside(files)
    if found is None:
        return None
    table, images = found
    names = [image.name for image in images]
    if not options.label_column and by_file_names(names):
        return None
    tried = Problems()
    labels = listed_images(sources.PackedFile(path, "", table), names, options, tried)
    if labels is None:
        return None
    problems.add(tried)
    problems.note(path.name, f"the labels of the images are in {quoted(table)}.")
    return Images(path, options, labels=labels)


def _texts_in(path: Path, names: Iterable[str], options: DataOptions) -> AnyKind | None:
    """Return a reader for texts in class folders, in a folder or zip without images; else None."""
    found: list[str] = []
    for name in names:
        check_time()
        if name.lower().endswith(IMAGE_SUFFIXES):
            return None
        found += [name] * (not any(map(is_ignored, name.split("/"))))
    texts = sources.text_names(found)
    if len({name.rpartition("/")[0] for name in texts if "/" in name}) < 2:
        return None
    source = sources.source_of(path, Problems())
    some = texts[:: -(-len(texts) // 20)]
    if any(is_image(source, name) for name in some if "." not in name.rpartition("/")[2]):
        return None
    return TableData(sources.TextFolder(path, skip=options.skip_unreadable), options)


def _looks_like_table(text: str) -> bool:
    """Return True if a text with an unknown suffix is more likely a table than prose."""
    dialect = table_file.find_dialect(text)
    if dialect is None or dialect.share < TABLE_SHARE or text.count("\n") < MIN_TABLE_ROWS:
        return False
    if all(map(_CHAT.match, text.split("\n", 5)[1:5])):
        return False
    rows = [row for row in dialect.reader(text.split("\n")[:500]) if len(row) == dialect.num_cells]
    columns = [[cell.strip() for cell in cells] for cells in zip(*rows, strict=True) if any(cells)]
    share_of_numbers = [
        sum(table_file.LIKE_A_NUMBER.fullmatch(cell) is not None for cell in cells) / len(cells)
        for cells in columns
    ]
    has_numbers = any(share > 0.8 for share in share_of_numbers)
    if dialect.delimiter in (" ", ":"):
        return sum(share > 0.8 for share in share_of_numbers) >= max(2, len(columns) / 2)
    # A column of few repeated values probably has labels; prose has no such column.
    has_labels = any(len(set(cells)) <= 0.2 * len(cells) and max(map(len, cells)) < 40 for cells in columns)
    return has_numbers or has_labels or (dialect.delimiter == "\t" and dialect.share > 0.98)


def _table(file: sources.DataFile, options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader for the table, or for the images listed in it if their folder is given."""
    if not options.images_path:
        return TableData(file, options)
    folder = data_path(replace(options, path=options.images_path))
    if not folder.is_dir():
        problems.fault(
            str(folder),
            "there is no folder of images at this path.",
            "Give the folder that contains the images.",
        )
        return None
    labels = listed_images(file, folder, options, problems)
    return None if labels is None else Images(folder, options, labels=labels)


def _in_folder(path: Path, options: DataOptions, problems: Problems) -> AnyKind | None:
    """Return a reader for images; if the folder has only tables or texts, suggest one of them instead."""
    with os.scandir(path) as found:
        entries = [(entry.name, entry.is_dir()) for entry in found if not entry.name.startswith(".")]
    if not any(is_dir for _, is_dir in entries):
        suffixes = (*table_file.TABLE_SUFFIXES, ".txt", ".md", ".zip")
        fitting = sorted(name for name, _ in entries if name.lower().endswith(suffixes))
        # Tables next to images may have their labels; `Images` reports that. Suggest training files first.
        fitting.sort(key=lambda name: "train" not in name.lower())
        if fitting and not any(name.lower().endswith(IMAGE_SUFFIXES) for name, _ in entries):
            hint = f"Give the path of one file, such as {quoted(fitting[0])}."
            suggested = {"data_path": str(path / fitting[0])}
            message = "the folder holds tables or texts, not images."
            problems.fault(path.name, message, hint, suggested=suggested)
            return None
    files = (f"{folder}/{name}" for folder, _, names in walk(path) for name in names)
    return _texts_in(path, (os.path.relpath(file, path) for file in files), options) or Images(path, options)
