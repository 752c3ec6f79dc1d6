"""Where images lie: a folder or a zip, seen alike. A zip is read in place and never unpacked."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from trainers.data.own.common import folders
from trainers.data.own.common.problems import Problems, quoted
from trainers.data.own.images import zip_checks

MAX_FILE_BYTES = 256 * 2**20
# Left everywhere by macOS, Windows, Synology, QNAP and Linux.
IGNORED_NAMES = (
    "__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information",
    "@eadir", "#recycle", "@recycle", "lost+found", "lost.dir", "icon\r",
)  # fmt: skip


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
            hint = "Move it up." if isinstance(error, folders.TooDeepError) else "Allow reading it."
            problems.fault(where, f"the folder cannot be gone into ({error.strerror}).", hint)

        for folder, inside, files in folders.walk(path, refused):
            inside[:] = [name for name in inside if not is_ignored(name)]
            below = PurePosixPath(Path(folder).relative_to(path).as_posix())
            for name in [name for name in inside if Path(folder, name).is_symlink()]:
                problems.note(str(below / name), "is a link to a folder and is not followed.")
            names = [str(below / name) for name in files if not is_ignored(name)]
            self.files += names
            if not names and not inside and below.parts:
                self.empty_folders.append(str(below))
            if len(self.files) > zip_checks.MAX_MEMBERS:
                message = f"holds more than {zip_checks.MAX_MEMBERS:,} files, which are the most."
                problems.fault(path.name, message, "Use fewer images.")
                self.files, self.empty_folders = [], []
                return

    def open(self, name: str) -> BinaryIO:
        """Open one of the files."""
        path = self._path / name
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise OSError("it is not a plain file")
        _check_size(about.st_size)
        return path.open("rb")


class ZipSource:
    """The files in a zip. One with anything suspicious is refused as a whole."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.files: list[str] = []
        self.empty_folders: list[str] = []
        self._infos: dict[str, zipfile.ZipInfo] = {}
        archive = zip_checks.open_zip(path, problems)
        if archive is None:
            return
        self._zip = archive
        if zip_checks.check_whole(path, archive, problems):
            self._take(archive.infolist(), problems)

    def open(self, name: str) -> BinaryIO:
        """Unpack one of the files into memory; its checksum is checked on the way."""
        info = self._infos[name]
        _check_size(info.file_size)
        with self._zip.open(info) as member:
            # As much as it says it is, and not all there is: a file that lies can grow without end.
            return io.BytesIO(member.read(info.file_size))

    def _take(self, infos: list[zipfile.ZipInfo], problems: Problems) -> None:
        empty = set()
        names = zip_checks.decoded_names(infos, problems)
        for info, named in zip(infos, names, strict=True):
            name = str(PurePosixPath(named.replace("\\", "/")))
            if any(is_ignored(part) for part in name.split("/") if part != ".."):
                continue
            if (why := zip_checks.why_refused(info)) is not None:
                problems.fault(quoted(name), why[0], why[1])
            elif info.is_dir():
                empty.add(name)
            elif name in self._infos:
                problems.fault(quoted(name), "is in the zip twice.", zip_checks.REPACK)
            else:
                self._infos[name] = info
        self.files = sorted(self._infos)
        parents = {str(parent) for name in [*self.files, *empty] for parent in PurePosixPath(name).parents}
        self.empty_folders = sorted(empty - parents)


def is_ignored(name: str) -> bool:
    """Tell whether a file or folder is one that systems leave everywhere."""
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_FILE_BYTES:
        raise OSError(f"it is larger than {MAX_FILE_BYTES // 2**20} MB")
    # Also what the system makes up when it is read (/proc): that says it is empty.
    if size_bytes == 0:
        raise OSError("it is empty")
