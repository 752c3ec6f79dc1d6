"""Where images lie: a folder or a zip, read alike. A zip is read in place and never unpacked to the disk."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trainers.data.own.common import limits
from trainers.data.own.common.problems import Problems, quoted
from trainers.data.own.common.reading import guess_names
from trainers.machine import os_errors

MAX_FILES = 2_000_000
MAX_NAME_CHARACTERS = 1024
MAX_FILE_BYTES = 256 * 2**20
MAX_UNPACKED_BYTES = 500 * 10**9
# Images are compressed already: a zip that grows more than this when unpacked was made to fill a disk.
MAX_RATIO = 100
RATIO_MATTERS_FROM = 20 * 2**20
STARTS = (b"PK\x03\x04", b"PK\x05\x06")
REPACK = "Create the zip again from the folder of the images."
# Left everywhere by macOS, Windows, Synology, QNAP and Linux.
IGNORED_NAMES = (
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information",
    "@eadir", "#recycle", "@recycle", "lost+found", "lost.dir", "icon\r",
)  # fmt: skip


class FolderSource:
    """The files below a folder; links to folders are not followed, as they may lead in circles."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path = path
        self.files: list[str] = []
        self.empty_folders: list[str] = []

        def refused(error: OSError) -> None:
            where = os.path.relpath(error.filename, path)
            hint = "Move it up, or allow this page's user to read it."
            problems.fault(where, f"the folder cannot be opened ({error.strerror}).", hint)

        for folder, inside, files in limits.walk(path, refused):
            inside[:] = [name for name in inside if not is_ignored(name)]
            below = PurePosixPath(Path(folder).relative_to(path).as_posix())
            for name in inside:
                if Path(folder, name).is_symlink():
                    message = "is a link to a folder and is not followed."
                    problems.note(str(below / name), message, "Give the folder itself, or copy it here.")
            names = [str(below / name) for name in files if not is_ignored(name)]
            self.files += names
            if not names and not inside and below.parts:
                self.empty_folders.append(str(below))
            if len(self.files) > MAX_FILES:
                problems.fault(path.name, f"contains more than {MAX_FILES:,} files.", "Use fewer images.")
                self.files, self.empty_folders = [], []
                return

    def open(self, name: str) -> BinaryIO:
        """Open one of the files.

        Raises:
            OSError: when it is not a regular file, too large or empty.
        """
        path = self._path / name
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a plain file")
        _check_size(status.st_size)
        return path.open("rb")


class ZipSource:
    """The files in a zip, which is refused as a whole if its directory is suspicious."""

    def __init__(self, path: Path, problems: Problems, encoding: str = "") -> None:
        self._path = path
        self.files: list[str] = []
        self.empty_folders: list[str] = []
        self._infos: dict[str, zipfile.ZipInfo] = {}
        with path.open("rb") as file:
            if file.read(4) not in STARTS:
                problems.fault(path.name, "it does not begin like a zip.", f"It may be damaged. {REPACK}")
                return
        try:
            self._zip = zipfile.ZipFile(path)
        # What zipfile raises for damaged directories.
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            EOFError,
            ValueError,
            OSError,
            struct.error,
        ) as error:
            hint = "It may be incomplete or no zip at all: copy or create it again."
            problems.fault(path.name, f"the zip cannot be opened ({os_errors.explain(error)}).", hint)
            return
        self._pid = os.getpid()
        infos = self._zip.infolist()
        if (reason := _why_refused(infos, path.stat().st_size)) is not None:
            problems.fault(path.name, reason, f"{REPACK} Or unpack it and give the folder.")
            return
        self._list(infos, encoding, problems)

    def open(self, name: str) -> BinaryIO:
        """Unpack one of the files into memory; zipfile verifies its checksum.

        Raises:
            OSError, zipfile.BadZipFile: when it cannot be read.
        """
        if self._pid != os.getpid():  # a forked process shares the position in its parent's file
            self._zip.fp, self._pid = self._path.open("rb"), os.getpid()
        info = self._infos[name]
        _check_size(info.file_size)
        with self._zip.open(info) as member:
            # No more than its declared size: a file that lies can grow without end.
            return io.BytesIO(member.read(info.file_size))

    def _list(self, infos: Sequence[zipfile.ZipInfo], encoding: str, problems: Problems) -> None:
        empty = set()
        for info, decoded in zip(infos, _decoded_names(infos, encoding, problems), strict=True):
            name = str(PurePosixPath(decoded.replace("\\", "/")))
            if any(is_ignored(part) for part in name.split("/")):
                continue
            if info.is_dir():
                empty.add(name)
            elif name in self._infos:
                problems.fault(quoted(name), "is in the zip twice.", REPACK)
            else:
                self._infos[name] = info
        self.files = sorted(self._infos)
        parents = {str(parent) for name in [*self.files, *empty] for parent in PurePosixPath(name).parents}
        self.empty_folders = sorted(empty - parents)


ImageSource = FolderSource | ZipSource


def is_ignored(name: str) -> bool:
    """Return True if operating systems leave files or folders of this name."""
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_FILE_BYTES:
        raise OSError(f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
    if size_bytes == 0:  # also files of /proc, whatever reading them returns
        raise OSError("it is empty")


def _why_refused(infos: Sequence[zipfile.ZipInfo], size_bytes: int) -> str | None:
    unpacked = sum(info.file_size for info in infos)
    if len(infos) > MAX_FILES:
        return f"contains {len(infos):,} files; at most {MAX_FILES:,} are allowed."
    if unpacked > MAX_UNPACKED_BYTES:
        most = MAX_UNPACKED_BYTES // 10**9
        return f"would be {unpacked / 1e9:,.0f} GB when unpacked; at most {most} are allowed."
    if unpacked > max(RATIO_MATTERS_FROM, MAX_RATIO * size_bytes):
        return f"grows {unpacked // size_bytes:,}-fold when unpacked; images at most {MAX_RATIO}-fold."
    for info in infos:
        path = PurePosixPath(info.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or info.filename[1:2] == ":":
            return f"{quoted(info.filename)} has a path that leads out of the zip."
        if len(info.filename) > MAX_NAME_CHARACTERS or len(path.parts) > limits.MAX_DEPTH:
            longest = f"{MAX_NAME_CHARACTERS:,} characters or {limits.MAX_DEPTH} folders"
            return f"{quoted(info.filename)} has a path of more than {longest}."
        if info.flag_bits & 0x1:
            return f"{quoted(info.filename)} is encrypted."
        # zipfile decompresses other formats at once, without a limit on the size.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"{quoted(info.filename)} is not compressed with deflate."
    return None


def _decoded_names(infos: Sequence[zipfile.ZipInfo], encoding: str, problems: Problems) -> list[str]:
    """Return the names of a zip's members: UTF-8 if they are flagged or valid, else in a guessed encoding."""
    raw = [_raw_name(info) for info in infos]
    unsure = sorted({folder for name in raw if name for folder in name.split(b"/") if not folder.isascii()})
    if not unsure:
        return [info.filename for info in infos]
    try:
        io.TextIOWrapper(io.BytesIO(), encoding or "utf-8")
    except LookupError:
        problems.fault("the encoding", f"there is no encoding {quoted(encoding)}.", "Use one such as cp932.")
        encoding = ""
    encoding = encoding or guess_names(unsure)
    if encoding != "utf-8":
        example = quoted(unsure[0].decode(encoding, errors="replace"))
        hint = 'If that is wrong, set the encoding in the reading, such as {"encoding": "cp932"}.'
        problems.note("the zip", f"names in it are read as {encoding}, such as {example}.", hint)
    return [
        info.filename if name is None else name.decode(encoding, errors="replace")
        for info, name in zip(infos, raw, strict=True)
    ]


def _raw_name(info: zipfile.ZipInfo) -> bytes | None:
    """Return the bytes of a name that zipfile decoded as cp437 because it is not marked as UTF-8."""
    try:
        return None if info.flag_bits & 0x800 else info.filename.encode("cp437")
    except UnicodeEncodeError:  # decoded from Info-ZIP's extra field
        return None
