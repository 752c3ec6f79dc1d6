"""What is wrong with a zip, or a file in one: told before anything of it is unpacked."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trainers.data.own.common.problems import Problems, quoted
from trainers.data.own.common.reading import guess

MAX_MEMBERS = 2_000_000
MAX_DIRECTORY_BYTES = 256 * 2**20
MAX_UNPACKED_BYTES = 500 * 10**9
# Images are compressed already: what grows more than this when unpacked was made to fill a disk.
MAX_RATIO = 100
RATIO_MATTERS_FROM = 20 * 2**20
MAX_DEPTH = 32
MAX_NAME_CHARACTERS = 1024
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
UNPACKED_IN_PIECES = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others only as a whole, however large
STARTS = (b"PK\x03\x04", b"PK\x05\x06")
REPACK = "Make the zip anew from the folder of the images."
_LOCAL_HEADER_BYTES = 30
_BROKEN = (
    zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OSError, OverflowError, struct.error,
)  # fmt: skip


def open_zip(path: Path, problems: Problems) -> zipfile.ZipFile | None:
    """Open a zip of a size that can be held; None where it is none, with why added to `problems`."""
    file = path.open("rb")
    if file.read(4) not in STARTS:
        file.close()
        problems.fault(path.name, "it does not begin like a zip.", f"It may be damaged. {REPACK}")
        return None
    try:
        # Read by several threads at once; ZipFile has a lock for that.
        return zipfile.ZipFile(_Bounded(file))
    except _BROKEN as error:
        file.close()
        hint = "It may be cut off or no zip at all: copy or make it again."
        problems.fault(path.name, f"the zip cannot be opened ({error}).", hint)
        return None


def check_whole(path: Path, archive: zipfile.ZipFile, problems: Problems) -> bool:
    """Tell whether a zip as a whole is of a kind that can be read; why not is added to `problems`."""
    infos = archive.infolist()
    unpacked = sum(info.file_size for info in infos)
    hint = "Use a zip of images only, or unpack it and give the folder."
    if len(infos) > MAX_MEMBERS:
        problems.fault(path.name, f"holds {len(infos):,} files; at most {MAX_MEMBERS:,} are taken.", hint)
    elif unpacked > MAX_UNPACKED_BYTES:
        most = MAX_UNPACKED_BYTES // 10**9
        message = f"would be {unpacked / 1e9:,.0f} GB when unpacked; at most {most} are taken."
        problems.fault(path.name, message, hint)
    elif unpacked > RATIO_MATTERS_FROM and unpacked > MAX_RATIO * path.stat().st_size:
        ratio = unpacked // max(1, path.stat().st_size)
        message = f"grows {ratio:,}-fold when unpacked, which images do not; {MAX_RATIO}-fold is the most."
        problems.fault(path.name, message, hint)
    elif (both := _overlapping(archive)) is not None:
        message = f"{quoted(both)} lies over another file of the zip."
        problems.fault(path.name, message, REPACK)
    else:
        return True
    return False


def why_refused(info: zipfile.ZipInfo) -> tuple[str, str] | None:
    """Return what is wrong with a member of a zip and what to do, or None."""
    return _wrong_name(info.filename) or _wrong_kind(info) or _wrong_size(info)


def decoded_names(infos: list[zipfile.ZipInfo], problems: Problems) -> list[str]:
    """Return the names of a zip's members: UTF-8 where they are valid without a mark, else guessed."""
    raw = [
        None if info.flag_bits & 0x800 or info.filename.isascii() else _raw(info.filename) for info in infos
    ]
    unsure = [name for name in raw if name is not None]
    encoding = "utf-8"
    try:
        b"\n".join(unsure).decode("utf-8")
    except UnicodeDecodeError:
        encoding = guess(b"\n".join(unsure))
        example = next(name for name in unsure if not name.isascii()).decode(encoding, errors="replace")
        problems.note("the zip", f"names in it are read as {encoding}, such as {quoted(example)}.")
    return [
        info.filename if name is None else name.decode(encoding, errors="replace")
        for info, name in zip(infos, raw, strict=True)
    ]


def _raw(name: str) -> bytes | None:
    try:
        return name.encode("cp437")
    except UnicodeEncodeError:
        return None


def _wrong_name(name: str) -> tuple[str, str] | None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or (len(name) > 1 and name[1] == ":"):
        return "has an absolute path, which belongs into no zip.", REPACK
    if ".." in path.parts:
        return "has a path that leads out of the zip.", REPACK
    if not path.parts:
        return "has no name.", REPACK
    if len(name) > MAX_NAME_CHARACTERS:
        return f"has a name of {len(name):,} characters; {MAX_NAME_CHARACTERS:,} are the most.", REPACK
    if len(path.parts) > MAX_DEPTH:
        depth = len(path.parts) - 1
        return f"lies in {depth:,} folders, one in the other; {MAX_DEPTH - 1} are the most.", REPACK
    if path.suffix.lower() in ARCHIVES:
        return "is an archive within the zip.", "Unpack it, and zip the folder of the images."
    return None


def _wrong_kind(info: zipfile.ZipInfo) -> tuple[str, str] | None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "is a link.", "Put the file itself into the zip."
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a device or the like, not a file.", "Leave it out of the zip."
    if info.flag_bits & 0x1:
        return "is encrypted.", "Make the zip without a password."
    if info.compress_type not in UNPACKED_IN_PIECES:
        return "is compressed in a way that is not read here.", "Make the zip the usual way (deflate)."
    return None


def _wrong_size(info: zipfile.ZipInfo) -> tuple[str, str] | None:
    if info.file_size > RATIO_MATTERS_FROM and info.file_size > MAX_RATIO * max(1, info.compress_size):
        ratio = info.file_size // max(1, info.compress_size)
        message = f"grows {ratio:,}-fold when unpacked, which no image does; {MAX_RATIO}-fold is the most."
        return message, "Leave it out of the zip."
    return None


def _overlapping(archive: zipfile.ZipFile) -> str | None:
    """Return the name of a file whose bytes are also another's: how a small zip pretends to be a huge one."""
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    begins = [*(info.header_offset for info in infos[1:]), archive.start_dir]
    for info, next_begin in zip(infos, begins, strict=False):
        if info.header_offset < 0:
            return info.filename
        if info.header_offset + _LOCAL_HEADER_BYTES + info.compress_size > next_begin:
            return info.filename
    return None


class _Bounded(io.BufferedIOBase):
    """A file of which no more is read at once than the list of a zip's files may take.

    Where it stands is its own: processes forked from this one may read it too.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._place = 0

    def read(self, size: int | None = -1, /) -> bytes:
        size = self._size() - self._place if size is None or size < 0 else size
        if size > MAX_DIRECTORY_BYTES:
            most = MAX_DIRECTORY_BYTES // 2**20
            raise zipfile.BadZipFile(f"its list of files is {size / 2**20:,.0f} MB long; {most} are the most")
        read = os.pread(self._file.fileno(), max(0, size), self._place)
        self._place += len(read)
        return read

    def seek(self, offset: int, whence: int = 0, /) -> int:
        start = (0, self._place, self._size())[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a place before the file's beginning")
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size
