"""Where images lie: a folder or a zip, seen alike. A zip is read in place and never unpacked."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from trainers.owndata.problems import Problems, quoted

MAX_FILE_BYTES = 512 * 2**20
MAX_MEMBERS = 2_000_000
MAX_UNPACKED_BYTES = 500 * 10**9
# Images are compressed already: what grows more than this when unpacked was made to fill a disk.
MAX_RATIO = 100
RATIO_MATTERS_FROM = 20 * 2**20
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
IGNORED_NAMES = ("__macosx", "thumbs.db", "desktop.ini")
REPACK = "Make the zip anew from the folder of the images."


class ImageSource(Protocol):
    """Names of files below one place, and their bytes."""

    files: list[str]
    empty_folders: list[str]

    def open(self, name: str) -> BinaryIO:
        """Open one of the files.

        Raises:
            OSError, zipfile.BadZipFile: when it cannot be read.
        """
        ...


class FolderSource:
    """The files below a folder; links to folders are not followed, as they may lead in circles."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path = path
        self.files: list[str] = []
        self.empty_folders: list[str] = []

        def refused(error: OSError) -> None:
            where = os.path.relpath(error.filename, path)
            problems.fault(where, "the folder cannot be opened.", f"Allow reading it ({error.strerror}).")

        for folder, folders, files in os.walk(path, onerror=refused):
            folders[:] = sorted(name for name in folders if not is_ignored(name))
            below = PurePosixPath(Path(folder).relative_to(path).as_posix())
            for name in [name for name in folders if Path(folder, name).is_symlink()]:
                problems.note(str(below / name), "is a link to a folder and is not followed.")
            names = [str(below / name) for name in sorted(files) if not is_ignored(name)]
            self.files += names
            if not names and not folders and below.parts:
                self.empty_folders.append(str(below))

    def open(self, name: str) -> BinaryIO:
        """Open one of the files."""
        path = self._path / name
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is not a plain file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OSError(f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
        return path.open("rb")


class ZipSource:
    """The files in a zip. One with anything suspicious is refused as a whole."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.files: list[str] = []
        self.empty_folders: list[str] = []
        self._infos: dict[str, zipfile.ZipInfo] = {}
        try:
            # Read by several threads at once; ZipFile has a lock for that.
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeDecodeError) as error:
            hint = "It may be cut off or no zip at all: copy or make it again."
            problems.fault(path.name, f"the zip cannot be opened ({error}).", hint)
            return
        infos = self._zip.infolist()
        if _check_size(path, infos, problems):
            self._take(infos, problems)

    def open(self, name: str) -> BinaryIO:
        """Unpack one of the files into memory; its checksum is checked on the way."""
        info = self._infos[name]
        if info.file_size > MAX_FILE_BYTES:
            raise OSError(f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
        with self._zip.open(info) as member:
            return io.BytesIO(member.read())

    def _take(self, infos: list[zipfile.ZipInfo], problems: Problems) -> None:
        folders = set()
        for info in infos:
            name = str(PurePosixPath(info.filename.replace("\\", "/")))
            if any(is_ignored(part) for part in name.split("/") if part != ".."):
                continue
            if (why := why_refused(info)) is not None:
                problems.fault(quoted(name), why[0], why[1])
            elif info.is_dir():
                folders.add(name)
            elif name in self._infos:
                problems.fault(quoted(name), "is in the zip twice.", REPACK)
            else:
                self._infos[name] = info
        self.files = sorted(self._infos)
        parents = {str(parent) for name in [*self.files, *folders] for parent in PurePosixPath(name).parents}
        self.empty_folders = sorted(folders - parents)


def why_refused(info: zipfile.ZipInfo) -> tuple[str, str] | None:
    """Return what is wrong with a member of a zip and what to do, or None."""
    name = info.filename
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or (len(name) > 1 and name[1] == ":"):
        return "has an absolute path, which belongs into no zip.", REPACK
    if ".." in path.parts:
        return "has a path that leads out of the zip.", REPACK
    if stat.S_ISLNK(info.external_attr >> 16):
        return "is a link.", "Put the file itself into the zip."
    if info.flag_bits & 0x1:
        return "is encrypted.", "Make the zip without a password."
    if path.suffix.lower() in ARCHIVES:
        return "is an archive within the zip.", "Unpack it, and zip the folder of the images."
    if info.file_size > RATIO_MATTERS_FROM and info.file_size > MAX_RATIO * max(1, info.compress_size):
        ratio = info.file_size // max(1, info.compress_size)
        return f"grows {ratio:,}-fold when unpacked, which no image does.", "Leave it out of the zip."
    return None


def is_ignored(name: str) -> bool:
    """Tell whether a file or folder is one that systems leave everywhere."""
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def _check_size(path: Path, infos: list[zipfile.ZipInfo], problems: Problems) -> bool:
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
        problems.fault(path.name, f"grows {ratio:,}-fold when unpacked, which images do not.", hint)
    else:
        return True
    return False
