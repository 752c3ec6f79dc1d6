"""Formats that DuckDB does not read: binary ones by name, and LibSVM, ARFF and fastText converted to CSV."""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainers.data.own import processes
from trainers.data.own.problems import quoted
from trainers.data.own.reading import ReadingError

WEB_PAGE = "a web page or XML"
AS_TABLE = "Save the table in it as CSV or Parquet."
NOT_TAKEN = {  # what to do with files that are not read, by suffix
    **dict.fromkeys((".pdf", ".docx", ".doc", ".rtf", ".odt", ".epub"), "Save its text as a .txt file."),
    ".npz": AS_TABLE,
    **dict.fromkeys((".tar", ".tgz", ".7z", ".rar"), "Unpack it and give the folder."),
    **dict.fromkeys((".zst", ".lz4", ".z"), "Unpack it, and choose the file inside."),
}
# Names of binary formats by their first bytes.
BINARY = {
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"\x89HDF": "an HDF5 file",
    b"SQLite format 3": "an SQLite database",
    b"<stata_dta>": "a Stata file (.dta)",
    **dict.fromkeys((b"$FL2", b"$FL3"), "an SPSS file (.sav)"),
    b"MATLAB 5.0": "a MATLAB file (.mat)",
    b"ARROW1": "an Arrow or Feather file",
    b"Obj\x01": "an Avro file",
    b"ORC": "an ORC file",
    b"RDX": "an R data file",
    b"%PDF": "a PDF",
    b"{\\rtf": "an RTF document",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    **dict.fromkeys((b"\0\0\x08\x01", b"\0\0\x08\x03"), "an IDX file, as MNIST is distributed,"),
    **{b"\x80" + bytes([version]): "a Python pickle" for version in (2, 3, 4, 5)},
    **dict.fromkeys((b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML", b"<table", b"<?xml"), WEB_PAGE),
}
MAX_CELLS = 500_000_000  # of a LibSVM file with a cell for each feature
_LINES, _CHARACTERS = 50, 2**18  # examined
_FEATURE = r"\d+:[-+]?(?:\d[\d.]*|\.\d+|nan|inf)(?:[eE][-+]?\d+)?"
_LIBSVM = re.compile(
    rf"[-+]?[\d.]+(?:e[-+]?\d+)?(?:,[-+\d.]+)*(?:\s+qid:\d+)?((?:\s+{_FEATURE})*)\s*(?:#.*)?", re.I
)
LABELS = {
    "fastText": re.compile(r"(?:^| )__label__(\S+)"),
    "lines that end with their label": re.compile(r"@([a-z]+)$"),
    # 1 a fine film; DESC:manner How do they do it?
    "lines that begin with their label": re.compile(
        r"^(\d{1,2}|[A-Z]{2,6}:[a-z]+) (?=\W*[^\W\d_]+\W+\w)(?!.*(?:[;|\t]|,\S))"
    ),
}
_TAGGED = re.compile(r"^\S+[ \t](?:\S+[ \t])*(?:O|[BI]-\w+)$")  # a word and its tag
_VOWPAL_WABBIT = re.compile(r"[-+]?[\d.]*(?:\s+[\d.]+)*(?:\s+'\S*)?\s*\|\S*(?:\s+\S+)+")
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)\s*(.*)""", re.I)

Write = Callable[[Sequence[Any]], Any]  # a row, empty for a line without one


def binary_format(start: bytes) -> str:
    """Return the name of a binary format by a file's first bytes, or an empty string."""
    name = next((name for magic, name in BINARY.items() if start.lstrip(b" \r\n\t").startswith(magic)), "")
    return "a tar archive" if start[257:262] == b"ustar" else name


def is_json_file(path: Path) -> bool:
    """Return True if the first line of a file is a JSON object, or a list of them."""
    with path.open("rb") as file:
        line = file.readline(2**20)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value[0] if isinstance(value, list) and value else value, dict)


def text_format(text: str) -> str:
    """Return LibSVM, ARFF, fastText or Vowpal Wabbit by the beginning of a text, or an empty string."""
    text = text[:_CHARACTERS]
    if all(re.search(rf"^[ \t]*@{word}\b", text, re.I | re.M) for word in ("relation", "attribute")):
        return "ARFF"
    lines = [line.strip() for line in text.split("\n")[: 4 * _LINES]]
    lines = [line for line in lines if line and not line.startswith("#")][:_LINES]
    lines = lines[:-1] if len(lines) > 2 and not text.endswith("\n") else lines  # it may be cut off
    if len(lines) < 2:
        return ""
    matches = [_LIBSVM.fullmatch(line) for line in lines]
    if all(matches) and sum(bool(each and each[1]) for each in matches) > 0.5 * len(lines):
        indices = [[int(one) for one in re.findall(r"(\d+):", each[1])] for each in matches if each]
        return "LibSVM" if all(each == sorted(set(each)) for each in indices) else ""
    for form, pattern in LABELS.items():
        labels = [each[1] if (each := pattern.search(line)) else "" for line in lines]
        if all(labels) and (form == "fastText" or 1 < len(set(labels)) <= 0.2 * len(lines)):
            return form
    if sum(map(bool, map(_TAGGED.search, lines))) > 0.9 * len(lines):
        return "CoNLL"
    num = sum(re.search(r"\s[^\s|:]+:[-+]?[\d.]+", line) is not None for line in lines)
    return "Vowpal Wabbit" if num > 0.5 * len(lines) and all(map(_VOWPAL_WABBIT.fullmatch, lines)) else ""


def as_csv(form: str, text: Path) -> list[str]:
    """Rewrite a text of such a format as CSV without a header, line by line; return the column names.

    Raises:
        ReadingError: if it cannot be read; names the format.
    """
    if form in ("CoNLL", "Vowpal Wabbit"):
        raise ReadingError(f"it is a {form} file, which is not read.", "Convert it to CSV or LibSVM.", 1)
    written = text.with_name("rewritten")
    convert = {"ARFF": _arff, "LibSVM": _libsvm}.get(form) or functools.partial(_labelled, LABELS[form])
    with (
        text.open(encoding="utf-8", errors="surrogatepass", newline="") as file,
        written.open("w", encoding="utf-8", errors="surrogatepass", newline="") as to,
    ):
        writer = csv.writer(to, lineterminator="\n")

        def write(row: Sequence[Any]) -> None:
            processes.check_time()
            writer.writerow(row)

        names = convert(file, write)
    written.replace(text)
    return names


def _libsvm(lines: TextIO, write: Write) -> list[str]:
    """Write a label and one cell per feature; a feature that a line does not name is 0."""
    indices: set[int] = set()
    has_query, num_rows = False, 0
    for number, line in enumerate(lines, start=1):
        label, *features = line.partition("#")[0].split() or [""]
        if "," in label:
            hint = "Convert it to CSV with one label in each row."
            raise ReadingError("it is a LibSVM file with several labels in a row.", hint, number)
        num_rows += bool(label)
        for feature in features:
            name = feature.partition(":")[0]
            has_query |= name == "qid"
            if name != "qid":
                indices.add(_place(name, number))
    minimum = min(indices, default=1)
    columns = range(min(minimum, 1), max(indices, default=0) + 1)
    if len(columns) * num_rows > MAX_CELLS:
        message = f"it is a LibSVM file of {num_rows:,} rows with {len(columns):,} features each"
        raise ReadingError(f"{message}: {MAX_CELLS:,} cells are the most.", "Select rows or features.")
    lines.seek(0)
    for number, line in enumerate(lines, start=1):
        label, *features = line.partition("#")[0].split() or [""]
        cells = dict(feature.partition(":")[::2] for feature in features)
        query = [cells.pop("qid", "")] * has_query
        row = ["0"] * len(columns)
        for name, value in cells.items():
            row[_place(name, number) - columns.start] = value
        write([label, *query, *row] if label else [])
    return ["label", *["query id"] * has_query, *map(str, columns)]


def _place(name: str, line: int) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        raise ReadingError(
            f"it is a LibSVM file with a feature called {quoted(name)}.", "Number features.", line
        )
    return int(name)


def _arff(lines: TextIO, write: Write) -> list[str]:
    """Write the rows below @data; a sparse row, in braces, becomes a full one."""
    names: list[str] = []
    defaults: list[str] = []
    is_data = False
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if is_data and text and not text.startswith("%"):
            cells = _arff_cells(text.strip("{}"))
            if text.startswith("{"):
                pairs = [cell.partition(" ")[::2] for cell in cells if cell]
                cells = list(defaults)
                for index, value in pairs:
                    if not index.isdigit() or int(index) >= len(names):
                        raise ReadingError(
                            f"it is an ARFF file with a column {quoted(index)}.", AS_TABLE, number
                        )
                    cells[int(index)] = value.strip().strip("'\"")
            write(cells)
            continue
        write([])
        if match := _ATTRIBUTE.fullmatch(text):
            names.append(match[1].strip("'\"").replace("\\", ""))
            is_nominal = match[2].startswith("{")
            defaults.append(_arff_cells(match[2].strip("{} "))[0] if is_nominal else "0")
        is_data |= text.lower() == "@data"
    return names


def _arff_cells(text: str) -> list[str]:
    quote = "'" if text.count("'") > text.count('"') else '"'
    (row,) = csv.reader([text], quotechar=quote, escapechar="\\", skipinitialspace=True)
    return [cell.strip() for cell in row]


def _labelled(pattern: re.Pattern[str], lines: TextIO, write: Write) -> list[str]:
    for number, line in enumerate(lines, start=1):
        labels = pattern.findall(line.strip())
        if len(labels) > 1:
            hint = "Convert it to CSV with one label in each row."
            raise ReadingError("it is a fastText file with several labels in a row.", hint, number)
        write([*labels, pattern.sub("", line.strip()).strip()] if labels else [])
    return ["label", "text"]
