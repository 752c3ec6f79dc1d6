"""Files to read: given as such, compressed, in a zip, or made from texts in class folders."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from trainers.data.own import processes
from trainers.data.own.cache import TemporaryFolder, require_space
from trainers.data.own.image_files import DAMAGED, MAX_RATIO, RATIO_MATTERS_FROM, ImageSource, source_of
from trainers.data.own.images import LabelledFile, joined, labelled_files
from trainers.data.own.problems import DataError, Problems, listed, quoted
from trainers.data.own.reading import MARKS, guess

BEGINNING_BYTES = 4 * 2**20
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
PACKED_STARTS = {b"\x1f\x8b\x08": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz"}
_PIECE_BYTES = 2**20


class DataFile:
    """A file at a path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading: dict[str, Any] = {}  # how it is written, if that is known

    def local(self, problems: Problems) -> Path:  # noqa: ARG002 - for subclasses
        """Return the path of the file to read."""
        return self.path


class PackedFile(DataFile):
    """A compressed file, or a file in a zip; it is unpacked into the cache when it is first read.

    Args:
        kind: .gz, .bz2 or .xz; empty for a zip.
        member: name of the file in a zip.
    """

    def __init__(self, path: Path, kind: str, member: str = "") -> None:
        super().__init__(path)
        self._kind = kind
        is_named = path.suffix.lower() == kind
        self.name = PurePosixPath(member).name or (path.stem if is_named else path.name)
        self._member = member
        self._folder: TemporaryFolder | None = None

    def local(self, problems: Problems) -> Path:  # noqa: ARG002 - as in the base class
        """Unpack the file at the first call; return its path.

        Raises:
            DataError: if it is damaged, or grows too much.
        """
        if self._folder is None:
            folder = TemporaryFolder("unpacked")
            self._unpack(folder.path)
            self._folder = folder
        return self._folder.path / self.name

    def beginning(self, folder: Path) -> Path:
        """Unpack the first bytes into a folder; return the path."""
        return self._unpack(folder, BEGINNING_BYTES)

    def _unpack(self, folder: Path, maximum: int | None = None) -> Path:
        limit = max(RATIO_MATTERS_FROM, MAX_RATIO * self.path.stat().st_size)
        progress = processes.ReadProgress("million bytes unpacked", 0, scale=1e6)
        num_bytes = 0
        try:
            with self._open() as file, (folder / self.name).open("wb") as to:
                while (maximum is None or num_bytes < maximum) and (chunk := file.read(_PIECE_BYTES)):
                    progress.add(len(chunk))
                    require_space(folder, len(chunk))
                    num_bytes += to.write(chunk)
                    if num_bytes > limit:
                        message = f"it grows more than {MAX_RATIO}-fold when unpacked."
                        raise self._refused(message, "Unpack it, and choose the file inside.")
        except DataError:
            raise
        except DAMAGED as error:
            hint = "It may be cut off: copy or download it again."
            raise self._refused(f"it cannot be unpacked ({error}).", hint) from error
        return folder / self.name

    def _open(self) -> BinaryIO:
        if self._kind:
            return cast(BinaryIO, OPENERS[self._kind](self.path))
        return cast(BinaryIO, zipfile.ZipFile(self.path).open(self._member))

    def _refused(self, message: str, hint: str) -> DataError:
        return DataError.of(str(self.path), self.path.name, message, hint)


class TextFolder(DataFile):
    """Texts in class folders, written as a table of text, label and, if folders say it, split."""

    def __init__(self, path: Path, *, skip: bool) -> None:
        super().__init__(path)
        columns = {"text": "text", "label": "category"}
        self.reading = {"header": True, "delimiter": ",", "columns": columns}
        self._skip = skip
        self._folder: TemporaryFolder | None = None

    def local(self, problems: Problems) -> Path:
        """Write the table at the first call; return its path."""
        if self._folder is None:
            source = source_of(self.path, problems)
            names = text_names(source.files)
            labelled = labelled_files(source, names, "texts", skip=self._skip, problems=problems)
            problems.check(str(self.path))
            folder = TemporaryFolder("texts")
            labelled = joined(labelled, problems, is_joined=False)
            _write_texts(source, labelled, folder.path / "texts.csv", problems)
            self._folder = folder
        return self._folder.path / "texts.csv"


def text_names(names: Sequence[str]) -> list[str]:
    """Return the files that are texts by their names: .txt, .md, without a suffix, or with a number."""
    pattern = re.compile(r"(\.(txt|text|md|[0-9a-f]*\d[0-9a-f]*))?", re.I)
    return [name for name in names if pattern.fullmatch(PurePosixPath(name).suffix)]


def _write_texts(source: ImageSource, labelled: Sequence[LabelledFile], to: Path, problems: Problems) -> None:
    has_split = any(held is not None for *_, held in labelled)
    progress = processes.ReadProgress("texts read", len(labelled))
    encoding, others, unreadable = "", 0, []
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(["text", "label", "split"][: 2 + has_split])
        for name, label, held in labelled:
            progress.add(1)
            try:
                with source.open(name) as one:
                    raw = one.read()
            except DAMAGED:
                unreadable.append(name)
                continue
            try:
                marked = next((code for mark, code in MARKS.items() if raw.startswith(mark)), "utf-8")
                text = raw.decode(marked)
            except UnicodeDecodeError:
                encoding = encoding or guess(raw)
                others += 1
                text = raw.decode(encoding, errors="replace")
            text = " ".join(text.replace("\0", " ").splitlines())
            writer.writerow([text, label, "validation" if held else "train"][: 2 + has_split])
    if others:
        problems.note("the texts", f"{others:,} are not UTF-8; they are read as {encoding}.")
    if unreadable:
        shown = listed(list(map(quoted, unreadable)), 3)
        message = f"{len(unreadable):,} of {len(labelled):,} are empty or cannot be read: {shown}."
        problems.note("the texts", message, "They are left out.")
