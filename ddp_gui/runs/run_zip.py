"""Packs a run into a zip, and unpacks a zip from another machine, which is untrusted input.

Both run in a separate process (`MODULE`). Only files that belong to a run are written, and nothing in the zip
is executed.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import resource
import stat
import struct
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import orjson

from ddp_gui.auth import rights
from ddp_gui.events import event_reader
from ddp_gui.http.shell import visible
from ddp_gui.runs import exports, listing
from ddp_gui.runs.listing import IMPORTED_FILE, Imported
from trainers.contract import code, events, rundir, start_from
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.rundir import RunDirectory, Status, file_stem
from trainers.contract.status import StatusError
from trainers.files import plain_files, typed
from trainers.files.json_files import MAX_JSON_BYTES, parse_json, write_json_atomically
from trainers.files.typed import Limit
from trainers.machine.os_errors import explain

MODULE = "ddp_gui.runs.run_zip"
HASHES_FILE = "hashes.json"
TAG = "handed in"
MAX_ZIP_BYTES = 2**30
MAX_UNPACKED_BYTES = 2 * 2**30
MAX_FILES = 2_000
# Maximum compression ratio. Events shrink about tenfold, logs more; zip bombs up to 1,032-fold.
MAX_RATIO = 200
RATIO_MATTERS_FROM_BYTES = 16 * 2**20
MAX_DIFFERENCES = 50
# Memory limit: reading a central directory of 2 GB with empty entries would take 20 GB.
MEMORY_BYTES = 4 * 2**30
PIECE_BYTES = 256 * 1024

_TOP_FILES = ("config.json", "status.json", "events.jsonl", "notes.json", "data.json", "references.json")
_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9_.+=-]{1,100}"
_RUN_FILES = re.compile(
    rf"logs/(?!\.)[A-Za-z0-9_.-]{{1,100}}\.(?:log|txt)|recordings/step_[0-9]{{1,15}}\.json"
    rf"|checkpoints/step_[0-9]{{1,15}}(?:/{_PART}){{1,3}}|start/(?:origin|model)\.json",
    re.ASCII,
)
# Files that are neither packed nor unpacked: they control the program on a machine, or can be made again.
_EXCLUDED = re.compile(
    r"(?:commands\.jsonl|owner\.json|queued\.json|granted\.json|confined\.json|imported\.json|run\.lock|job\.sh"
    r"|start/model\.(?:safetensors|pt)|(?:work|watch|nodes|rendezvous|logs/torchrun(?:_[0-9]+)?)/.*)",
    re.DOTALL,
)
# Entries that file managers add.
_JUNK = re.compile(r"(?:.*/)?(?:__MACOSX/.*|\.DS_Store|Thumbs\.db|desktop\.ini)", re.DOTALL)


def is_run_file(name: str) -> bool:
    """Return True if a file of this name, relative to the run's folder, is part of a packed run."""
    folder, _, path = name.partition("/")
    if folder == code.FOLDER:
        return code.is_plain(path)
    return name in _TOP_FILES or _RUN_FILES.fullmatch(name) is not None


# Packing


def pack(run: RunDirectory, *, with_checkpoint: bool) -> Iterator[bytes]:
    """Yield a zip of a run; the last file, `hashes.json`, has the SHA-256 of each other file."""
    hashes: dict[str, dict[str, Any]] = {}
    top_folder = file_stem(run.run_id)

    def files() -> Iterator[tuple[str, Callable[[], Iterator[bytes]]]]:
        for name in sorted(_file_names(run, with_checkpoint=with_checkpoint)):
            yield f"{top_folder}/{name}", partial(_read_and_hash, run.path / name, name, hashes)
        manifest = {"version": 1, "run_id": run.run_id, "packed_unix_s": time.time(), "files": hashes}
        yield (
            f"{top_folder}/{HASHES_FILE}",
            lambda: iter([orjson.dumps(manifest, option=orjson.OPT_INDENT_2)]),
        )

    return exports.zip_pieces(files())


def _file_names(run: RunDirectory, *, with_checkpoint: bool) -> Iterator[str]:
    folders = [run.logs, run.recordings, run.path / code.FOLDER, run.path / start_from.FOLDER]
    if with_checkpoint and (checkpoints := run.list_checkpoints()):
        folders.append(
            max(checkpoints, key=lambda checkpoint: (checkpoint.saved_unix_s, checkpoint.step)).path
        )
    top_files = [run.path / name for name in _TOP_FILES]
    for path in itertools.chain(top_files, *(folder.rglob("*") for folder in folders if folder.is_dir())):
        name = path.relative_to(run.path).as_posix()
        if is_run_file(name) and path.is_file() and not path.is_symlink():
            yield name


def _read_and_hash(path: Path, name: str, hashes: dict[str, dict[str, Any]]) -> Iterator[bytes]:
    """Yield a file's content up to its current size, and record the hash."""
    digest, size_bytes = hashlib.sha256(), 0
    with plain_files.open_plain(path) as file:
        end = path.stat().st_size
        while piece := file.read(min(PIECE_BYTES, end - size_bytes)):
            digest.update(piece)
            size_bytes += len(piece)
            yield piece
    hashes[name] = {"sha256": digest.hexdigest(), "size_bytes": size_bytes}


# Unpacking


@dataclass(frozen=True, kw_only=True)
class _File:
    sha256: Annotated[str, Limit(pattern="[0-9a-f]{64}")]
    size_bytes: Annotated[int, Limit(low=0, high=2**62)]


@dataclass(frozen=True, kw_only=True)
class _Hashes:
    run_id: Annotated[str, Limit(least=1, most=rundir.MAX_BYTES)]
    packed_unix_s: float
    files: Annotated[dict[str, _File], Limit(most=MAX_FILES)]


def unpack(source: Path, folder: Path) -> Imported:
    """Unpack a zip of a run into an empty folder, mark the run as ended, and compare the hashes.

    Raises:
        ValueError: if the file is not a zip of a run, exceeds the limits, or contains an invalid run.
        OSError: if the folder cannot be written.
    """
    if source.stat().st_size > MAX_ZIP_BYTES:
        raise ValueError(f"the zip is larger than {MAX_ZIP_BYTES // 2**20:,} MiB; allowed: less")
    try:
        with zipfile.ZipFile(source) as archive:
            infos = _check_entries(archive.infolist(), source.stat().st_size)
            _require_room(folder, infos)
            unpacked = {name: _write(archive, info, folder / name) for name, info in infos.items()}
            hashes = _read_hashes(folder)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        struct.error,
        zlib.error,
    ) as error:
        raise ValueError(f"the zip cannot be read: {explain(error)}") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError("the zip has a file and a folder of the same name") from error
    imported = _compare(unpacked, hashes, source)
    _finish_import(RunDirectory(folder), imported)
    return imported


def _check_entries(infos: list[zipfile.ZipInfo], size_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Return the entries to unpack, by their names in the run's folder.

    Raises:
        ValueError: if an entry is not allowed, or the total size is too large.
    """
    if len(infos) > MAX_FILES:
        raise ValueError(f"the zip has {len(infos):,} files; allowed: at most {MAX_FILES:,}")
    unpacked_bytes = sum(info.file_size for info in infos)
    if unpacked_bytes > MAX_UNPACKED_BYTES:
        raise ValueError(
            f"the zip has {unpacked_bytes / 2**20:,.0f} MiB when unpacked; allowed: at most "
            f"{MAX_UNPACKED_BYTES // 2**20:,} MiB"
        )
    if unpacked_bytes > max(RATIO_MATTERS_FROM_BYTES, MAX_RATIO * size_bytes):
        raise ValueError(
            f"the zip grows {unpacked_bytes // size_bytes:,}-fold when unpacked; allowed: {MAX_RATIO}-fold"
        )
    files = [info for info in infos if not info.is_dir() and not _JUNK.fullmatch(info.filename)]
    top = _top_folder([info.filename for info in files])
    by_name: dict[str, zipfile.ZipInfo] = {}
    for info in files:
        name = info.filename.removeprefix(top)
        kind = stat.S_IFMT(info.external_attr >> 16)
        shown_name = visible(info.filename[:100])
        if kind not in (0, stat.S_IFREG):
            raise ValueError(f"the zip has {shown_name!r}; allowed: files only, no links")
        if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"the zip has {shown_name!r}; allowed: without a password, stored or deflated")
        if not info.filename.startswith(top) or not (
            name == HASHES_FILE or is_run_file(name) or (_EXCLUDED.fullmatch(name) and ".." not in name)
        ):
            raise ValueError(f"the zip has {shown_name!r}; allowed: the files of one run")
        if name in by_name:
            raise ValueError(f"the zip has {shown_name!r} twice; allowed: once")
        if name.endswith(".json") and info.file_size > MAX_JSON_BYTES and name in (*_TOP_FILES, HASHES_FILE):
            raise ValueError(f"the zip has {shown_name!r} of more than {MAX_JSON_BYTES // 2**20} MiB")
        by_name[name] = info
    if "events.jsonl" not in by_name:
        raise ValueError("the zip has no events.jsonl; expected: the zip of a run")
    return {name: info for name, info in by_name.items() if not _EXCLUDED.fullmatch(name)}


def _top_folder(names: list[str]) -> str:
    """Return the folder that contains the run, with "/" at its end; empty if the zip has none."""
    if "config.json" in names:
        return ""
    tops = [name.removesuffix("config.json") for name in names if re.fullmatch(r"[^/]+/config\.json", name)]
    if not tops:
        raise ValueError("the zip has no config.json; expected: the zip of a run")
    if len(tops) > 1:
        raise ValueError(f"the zip has {len(tops)} runs; allowed: one")
    return tops[0]


def _require_room(folder: Path, infos: Mapping[str, zipfile.ZipInfo]) -> None:
    free, reserve = rundir.disk_space(folder)
    needed = sum(info.file_size for info in infos.values())
    if free - needed < reserve:
        raise ValueError(
            f"the disk has {free / 2**30:.1f} GiB free, of which {reserve / 2**30:.1f} GiB are reserved, "
            f"but the run needs {needed / 2**30:.1f} GiB"
        )


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> _File:
    """Write a file, up to the size recorded in the zip; zipfile checks the CRC."""
    digest, size_bytes = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as packed_file, path.open("xb") as file:
        while piece := packed_file.read(PIECE_BYTES):
            size_bytes += len(piece)
            if size_bytes > info.file_size:
                raise zipfile.BadZipFile(f"{path.name} is longer than recorded")
            digest.update(piece)
            file.write(piece)
    return _File(sha256=digest.hexdigest(), size_bytes=size_bytes)


def _read_hashes(folder: Path) -> _Hashes | None:
    path = folder / HASHES_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()  # no longer needed: `imported.json` has the result of the comparison
    try:
        return typed.read(_Hashes, parse_json(content), ignores_unknown=True)
    except ValueError as error:
        raise ValueError(f"{HASHES_FILE} in the zip is damaged: {visible(str(error)[:200])}") from error


def _compare(unpacked: dict[str, _File], hashes: _Hashes | None, source: Path) -> Imported:
    unpacked.pop(HASHES_FILE, None)
    recorded = {} if hashes is None else hashes.files
    differences = []
    for name in sorted(unpacked.keys() | recorded.keys()) if hashes is not None else ():
        if unpacked.get(name) != recorded.get(name):
            difference = (
                "is missing" if name not in unpacked else "differs" if name in recorded else "is not recorded"
            )
            differences.append(f"{visible(name[:200])} {difference}")
    return Imported(
        origin=visible(hashes.run_id if hashes else source.stem)[: rundir.MAX_BYTES],
        packed_unix_s=hashes.packed_unix_s if hashes else None,
        imported_unix_s=time.time(),
        result="no hashes" if hashes is None else "differs" if differences else "as recorded",
        differences=tuple(differences[:MAX_DIFFERENCES]),
        num_differences=len(differences),
    )


def _finish_import(run: RunDirectory, imported: Imported) -> None:
    """Turn unpacked files into an ended run of this machine.

    Raises:
        ValueError: if the configuration or an event cannot be read.
    """
    config = run.read_config()
    num_events = _count_events(run)
    if num_events == 0:
        raise ValueError("events.jsonl in the zip has no event; expected: the events of a run")
    run.logs.mkdir(exist_ok=True)
    run.checkpoints.mkdir(exist_ok=True)
    write_json_atomically(run.config, _remove_paths(config).to_json())
    run.write_status(_ended_status(run))
    notes = listing.read_notes(run)
    tags = [TAG, *(tag for tag in notes.tags if tag != TAG)][: listing.MAX_TAGS]
    listing.write_notes(run, listing.change_notes(notes, tags=tags))
    write_json_atomically(run.path / IMPORTED_FILE, asdict(imported))


def _count_events(run: RunDirectory) -> int:
    offset = num_events = 0
    while True:
        batch, end, num_damaged = event_reader.read_batch(run.events, offset)
        if num_damaged:
            raise ValueError(
                f"events.jsonl in the zip has {num_damaged:,} lines after byte {offset:,} that are not "
                "events; allowed: none"
            )
        num_events += len(batch)
        if end == offset:
            return num_events
        offset = end


def _remove_paths(config: Config) -> Config:
    """Return the configuration with paths replaced by paths that cannot exist. Otherwise a user could import
    a configuration that names another user's file, and see its samples.
    """
    changes: dict[str, Any] = {}
    for field in rights.PATH_FIELDS:
        if path := getattr(config, field):
            name = PurePosixPath(path).name
            changes[field] = f"/dev/null/{name if name not in ('', '..') else 'data'}"
    return replace(config, **changes)


def _ended_status(run: RunDirectory) -> Status:
    """Return the recorded status without the engine and the process of the other machine."""
    try:
        recorded = status_file.read(run.status)
    except StatusError:
        recorded = None
    if recorded is None:
        recorded = Status(state=events.last_state(run.events) or "lost")
    ended = replace(recorded, engine=status_file.LOCAL, handle=None, last_seen_unix_s=None)
    if ended.state not in events.ENDED_STATES:
        return replace(ended, state="lost", error="The run had not ended when it was packed.")
    return ended


def main() -> None:
    """Pack or unpack, according to the JSON on stdin."""
    request = orjson.loads(sys.stdin.buffer.read())
    if "run" in request:
        for piece in pack(RunDirectory(Path(request["run"])), with_checkpoint=request["with_checkpoint"]):
            sys.stdout.buffer.write(piece)
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    problem = None
    try:
        unpack(Path(request["zip"]), Path(request["folder"]))
    except (ValueError, OSError) as error:
        problem = explain(error)
    sys.stdout.buffer.write(orjson.dumps({"problem": problem}))


if __name__ == "__main__":
    main()
