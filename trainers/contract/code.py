"""The code of a script's run: the files in its folder `code/`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from trainers.files import plain_files

FOLDER = "code"
MAX_FILES = 200
MAX_BYTES = 5 * 2**20
MAX_DEPTH = 8
# Maximum number of entries to search in a folder on the machine, which may also contain data.
MAX_ENTRIES = 5_000

# The files: path below the folder, with "/", and content.
Code = Mapping[str, bytes]


def check(files: Code, entry: str) -> None:
    """Raise ValueError if the files cannot be stored, or the entry file is not among them."""
    if entry not in files or not entry.endswith(".py"):
        names = ", ".join(sorted(name for name in files if name.endswith(".py"))[:10]) or "there is none"
        raise ValueError(f"script is {entry[:200]!r}; allowed: one of the .py files: {names}")
    if len(files) > MAX_FILES:
        raise ValueError(f"the code has {len(files):,} files; allowed: at most {MAX_FILES}")
    size = sum(map(len, files.values()))
    if size > MAX_BYTES:
        raise ValueError(
            f"the code has {size / 2**20:.1f} MiB; allowed: at most {MAX_BYTES // 2**20} MiB; give "
            "the path of large data instead"
        )
    for name in files:
        if not is_plain(name):
            raise ValueError(
                f"the code has a file {name[:200]!r}; allowed: a relative path without '..', hidden "
                f"folders and control characters, at most {MAX_DEPTH} folders deep"
            )


def is_plain(name: str) -> bool:
    """Return True if a file of this name stays below the folder."""
    parts = PurePosixPath(name).parts
    return (
        0 < len(name.encode(errors="replace")) <= 500
        and name == "/".join(parts)
        and name.isprintable()
        and "\\" not in name
        and len(parts) <= MAX_DEPTH
        and all(part not in (".", "..", "/") and not part.startswith(".") for part in parts)
    )


def read_folder(folder: Path, entry: Path) -> dict[str, bytes]:
    """Return the .py files of a script on this machine: its own, and those in and below its folder.

    Other files are not stored: a folder on the machine may hold any amount of data.

    Raises:
        OSError: if the entry file cannot be read.
        ValueError: if they exceed the limits.
    """
    entry_name = entry.relative_to(folder).as_posix()
    if entry.stat().st_size > MAX_BYTES:
        raise ValueError(f"{entry.name} is larger than {MAX_BYTES // 2**20} MiB; allowed: less")
    files = {entry_name: entry.read_bytes()}
    for path in _python_files(folder):
        name = path.relative_to(folder).as_posix()
        if is_plain(name) and len(files) < MAX_FILES:
            try:
                files[name] = path.read_bytes()
            except OSError:
                continue  # not readable, so the script cannot import it either
    check(files, entry_name)
    return files


def _python_files(folder: Path) -> Iterator[Path]:
    num_seen = 0
    for folder_path, folders, names in os.walk(folder):
        depth = len(Path(folder_path).relative_to(folder).parts)
        folders[:] = sorted(
            name
            for name in folders
            if depth < MAX_DEPTH - 1 and not name.startswith((".", "__pycache__")) and name != "site-packages"
        )
        num_seen += len(folders) + len(names)
        if num_seen > MAX_ENTRIES:
            return
        for name in sorted(names):
            path = Path(folder_path, name)
            is_plain_file = name.endswith(".py") and path.is_file() and not path.is_symlink()
            if is_plain_file and path.stat().st_size <= MAX_BYTES:
                yield path


def write(run_path: Path, files: Code) -> None:
    """Write the files into a new run's folder.

    Raises:
        OSError: if it cannot be written.
    """
    folder = run_path / FOLDER
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(run_path: Path) -> dict[str, bytes]:
    """Return the stored files of a run; empty if it has none. Links are left out."""
    folder = run_path / FOLDER
    files: dict[str, bytes] = {}
    size = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() and not folder.is_symlink() else ():
        name = path.relative_to(folder).as_posix()
        if len(files) >= MAX_FILES or path.is_symlink() or not path.is_file() or not is_plain(name):
            continue
        with plain_files.open_plain(path) as file:
            content = file.read(MAX_BYTES - size + 1)
        size += len(content)
        if size > MAX_BYTES:
            break
        files[name] = content
    return files
