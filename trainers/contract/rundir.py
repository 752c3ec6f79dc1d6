"""Run directories: ids, file names, reading and writing."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import re
import shutil
import time
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from trainers.contract import config as config_module
from trainers.contract import fence
from trainers.contract import status as status_file
from trainers.contract.config import Config
from trainers.contract.events import encode_event
from trainers.contract.status import Status
from trainers.files import plain_files, private_files
from trainers.files.json_files import overwrite_json, read_json, write_json_atomically
from trainers.machine import os_errors
from trainers.machine.os_errors import explain

# Matches advice of libraries that is dangerous (loading files that execute code, trusting remote code) or
# useless (setting a variable of a process that has ended).
_ADVICE = re.compile(
    r"weights_only|safe_globals|allow_pickle|trust_remote_code|WEIGHTS_ONLY_LOAD|torch\.serialization"
    r"|TORCH_SHOW_CPP_STACKTRACES|TORCH_USE_CUDA_DSA|TORCH_DISTRIBUTED_DEBUG|NCCL_DEBUG"
    r"|typically caused by|before reporting an error|GLHF|\U0001f3d6"
    r"|CUDA_LAUNCH_BLOCKING|ALLOC_CONF|KMP_DUPLICATE_LIB_OK|from a trusted source|arbitrary code",
    re.IGNORECASE,
)
# Matches the position in a library's source code at which the library detected an error.
_SOURCE = re.compile(r"\[[^\s\[\]]{1,300}\.(?:cc|cpp|h|hpp|cu):\d{1,6}\] ?")
_PARENTHESES = re.compile(r"(?<!\s)\s*\([^()]*\)")  # the lookbehind avoids quadratic time in a run of spaces
_END_OF_SENTENCE = re.compile(r"(?<=[.!?:;])[^\S\n]+")


def remove_advice(text: str) -> str:
    """Return a library's text, of one or more lines, without the sentences that give advice."""
    lines = []
    for line in _SOURCE.sub("", text).splitlines():
        line = _PARENTHESES.sub(lambda match: "" if _ADVICE.search(match[0]) else match[0], line)
        sentences = _END_OF_SENTENCE.split(line)
        useful = [sentence for sentence in sentences if not _ADVICE.search(sentence)]
        if useful or not sentences:
            lines.append(line if len(useful) == len(sentences) else " ".join(useful))
    return "\n".join(lines)


def library_error_text(error: BaseException) -> str:
    """Return an error's message for the end of a sentence; replaces a bare KeyError and an empty message."""
    if isinstance(error, KeyError):
        return f"{str(error.args[0])[:80]!r} is missing" if error.args else "something is missing"
    return remove_advice(explain(error)).strip() or type(error).__name__


MAX_BYTES = 240  # a file name has at most 255; the bin and copies append to it
# "/" and "\\" separate folders, "," separates ids in an address, "~" precedes the number of a run in the bin.
_RESERVED = frozenset("/\\,~")
_INVALID_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class Numbering:
    """How new runs are numbered if users do not see each other's runs.

    A number over all runs would reveal how many hidden runs there are. Therefore only the runs that the
    current user may see are counted, and a suffix makes the ids of two users differ.
    """

    suffix: str
    may_see: Callable[[Path], bool]


def is_visible(text: str) -> bool:
    """True if every character is visible or a space: no control characters, no lone surrogates.

    Unlike `str.isprintable`, it allows spaces of other scripts, such as the ideographic space.
    """
    return all(char.isprintable() or unicodedata.category(char) == "Zs" for char in text)


def is_run_id(name: object) -> TypeGuard[str]:
    """True if a folder of this name can be a run.

    New runs get ids of `[a-z0-9_-]`; a folder that was renamed or copied may have almost any name. Excluded
    are hidden names, names that look like an option, and characters that separate ids or are invisible.
    """
    return (
        isinstance(name, str)
        and is_visible(name)
        and 0 < len(name.encode()) <= MAX_BYTES
        and name[0] not in ".-"
        and name == name.strip()
        and _RESERVED.isdisjoint(name)
    )


def require_run_id(name: str) -> None:
    """Raise ValueError if a folder of this name cannot be a run."""
    if not is_run_id(name):
        raise ValueError(
            "The name of its folder is longer than 240 bytes, begins with '-', or contains a character that "
            r"a run id cannot have (',', '~', '\', invisible characters, bytes that are not UTF-8). "
            "Rename the folder."
        )


def file_stem(run_id: str) -> str:
    """Return a run id as the stem of a file name that every system and HTTP header accepts."""
    return _INVALID_IN_FILE_NAMES.sub("-", run_id)[:100].strip("-.") or "run"


def next_run_ids(runs_dir: Path, config: Config, numbering: Numbering | None) -> Iterator[str]:
    """Yield the ids of the next runs with this configuration: name (or data set and model) and number.

    Yields further ids because another process may create the first.
    """
    description = Path(config.script).stem if config.is_script else f"{config.dataset}-{config.model}"
    stem = _slug(config.name) or _slug(description) or "run"
    suffix = f"-{numbering.suffix}" if numbering else ""
    pattern = re.compile(rf"{re.escape(stem)}-(\d{{1,9}})(?:{re.escape(suffix)})?")
    try:
        names = os.listdir(runs_dir)
    except FileNotFoundError:
        names = []
    numbers = [
        int(match[1])
        for match in map(pattern.fullmatch, names)
        if match and (numbering is None or numbering.may_see(runs_dir / match[0]))
    ]
    return (f"{stem}-{number}{suffix}" for number in itertools.count(max(numbers, default=0) + 1))


def _slug(text: str) -> str:
    """Return a text as part of a folder's name, which cannot point outside of the runs directory."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower())[:40].strip("-_")


__all__ = ["Checkpoint", "RunDirectory", "Status"]

DISK_RESERVE_BYTES = 2**30
MADE_WITHIN_S, MADE_POLL_S = 30.0, 0.02
_MAX_MANIFEST_BYTES = 64 * 2**20
_STEP_DIRECTORY = re.compile(r"step_([0-9]{1,15})")
_MAX_REASON_CHARACTERS = 40
# The year 9999.
_MAX_UNIX_S = 253_402_300_800.0


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: its step, its path, and the reason for saving it (may be empty)."""

    step: int
    path: Path
    size_bytes: int
    saved_unix_s: float
    reason: str = ""


class RunDirectory:
    """The paths of one run and the few operations on them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.config = path / "config.json"
        self.status = path / "status.json"
        self.events = path / "events.jsonl"
        self.commands = path / "commands.jsonl"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.recordings = path / "recordings"
        self.lock = path / "run.lock"
        self.queued = path / "queued.json"
        self.granted = path / "granted.json"

    def rank_log(self, rank: int) -> Path:
        """Return the file that holds a rank's stdout and stderr."""
        return self.logs / f"rank_{rank}.log"

    def read_config(self) -> Config:
        """Read and validate `config.json`.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is not a valid configuration.
        """
        try:
            raw = read_json(self.config)
        except ValueError as error:
            raise ValueError("The configuration of this run is damaged: config.json is not JSON.") from error
        return config_module.parse(raw)

    def bytes_being_saved(self) -> int:
        """Return the size in bytes of the checkpoint that is being written, or 0."""
        num_bytes = 0
        # Do not use a glob pattern, which raises if a folder disappears: a save ends by renaming it.
        for folder, _, names in os.walk(self.checkpoints):
            top_folder = Path(folder).relative_to(self.checkpoints).parts[:1]
            if not top_folder or not (
                top_folder[0].startswith(".step_") and top_folder[0].endswith(".partial")
            ):
                continue
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # renamed a moment ago
                    num_bytes += Path(folder, name).stat().st_size
        return num_bytes

    def write_status(self, status: Status) -> None:
        """Replace `status.json` atomically; on a full disk overwrite it in place, which needs no space.

        Raises:
            OSError: if the file cannot be written.
            SupersededError: if this process belongs to an earlier start of the run.
        """
        fence.require_newest(self.path)
        try:
            write_json_atomically(self.status, status_file.to_json(status))
        except OSError as error:
            if error.errno not in os_errors.NO_SPACE or not self.status.exists():
                raise
            overwrite_json(self.status, status_file.to_json(status))

    def is_locked(self) -> bool:
        """Return True if a process owns this run now."""
        return private_files.is_locked(self.lock, self.path)

    def acquire_lock(self) -> int:
        """Take the run's lock for the life of this process and return its descriptor.

        Raises:
            ValueError: if another process owns the run, or another user owns its folder or lock.
            OSError: if a lock is impossible: the folder is not writable, or the lock is not a regular file.
        """
        private_files.require_ours(self.path)
        private_files.make_private(self.path, private_files.run_mode(self.path.parent))
        try:
            fd = private_files.open_lock(self.lock)
        except private_files.ForeignFileError:
            raise
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error), str(self.lock)) from error
        # Try again: `is_locked` in another process takes a shared lock for microseconds.
        if not private_files.lock_within(fd, 1.0):
            os.close(fd)
            raise ValueError(f"run {self.run_id} is already being run by another process")
        return fd

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the run's lock until the end of the block; raises the errors of `acquire_lock`."""
        lock = self.acquire_lock()
        try:
            yield
        finally:
            os.close(lock)

    def expect_commands(self) -> None:
        """Create the commands file if missing, so that commands from other machines arrive without delay.

        Raises:
            OSError: if it cannot be written.
            ForeignFileError: if another user owns it.
        """
        os.close(private_files.open_descriptor(self.commands, os.O_RDWR | os.O_CREAT | os.O_APPEND))

    def append_command(self, name: str, **arguments: Any) -> str:
        """Send a command to the run and return the command's id.

        Raises:
            ValueError: if the run belongs to another user.
            OSError: if it cannot be written.
        """
        private_files.require_ours(self.path)
        command_id = uuid.uuid4().hex[:12]
        line = encode_event({"id": command_id, "time_unix_s": time.time(), "name": name, **arguments})
        fd = private_files.open_descriptor(self.commands, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(fd).st_size
            # If a full disk cut the last line short, write a newline first, so that the command is a separate
            # line.
            is_open_line = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = (b"\n" if is_open_line else b"") + line + b"\n"
            with os_errors.about(self.commands):
                if os.write(fd, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
        return command_id

    def list_checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints (those with a manifest), lowest step first.

        If the manifests exceed 64 MiB in total, only the latest steps are returned.
        """
        checkpoints = []
        num_bytes = 0
        for step, path in sorted(self._step_directories(), reverse=True):
            try:
                num_bytes += (path / "manifest.json").stat().st_size
                if num_bytes > _MAX_MANIFEST_BYTES:
                    break
                manifest = read_json(path / "manifest.json")
                size = sum(entry["size_bytes"] for entry in manifest["files"].values())
                saved_unix_s = float(manifest["saved_unix_s"])
                reason = manifest.get("reason")
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                continue
            if not (isinstance(size, int) and math.isfinite(saved_unix_s)):
                continue
            if not 0 <= saved_unix_s < _MAX_UNIX_S:
                saved_unix_s = 0.0  # so that any later checkpoint is newer
            reason_text = reason[:_MAX_REASON_CHARACTERS] if isinstance(reason, str) else ""
            checkpoints.append(
                Checkpoint(
                    step=step, path=path, size_bytes=size, saved_unix_s=saved_unix_s, reason=reason_text
                )
            )
        return sorted(checkpoints, key=lambda item: item.step)

    def _step_directories(self) -> Iterator[tuple[int, Path]]:
        try:
            paths = list(self.checkpoints.iterdir())
        except OSError:
            return  # the folder is missing or unreadable
        for path in paths:
            match = _STEP_DIRECTORY.fullmatch(path.name)
            if match and not path.is_symlink():
                yield int(match[1]), path


def disk_space(folder: Path) -> tuple[int, int]:
    """Return a disk's free bytes, and the reserve that runs must leave free.

    The reserve keeps the page, its queue and other programs working: 1 GiB, or 1/20 of a smaller disk.

    Raises:
        OSError: if the folder does not exist.
    """
    usage = shutil.disk_usage(folder)
    return usage.free, min(DISK_RESERVE_BYTES, usage.total // 20)


def create(
    runs_dir: Path,
    config: Config,
    fill: Callable[[RunDirectory], None] | None = None,
    numbering: Numbering | None = None,
) -> RunDirectory:
    """Create a new run directory; never reuses an existing one.

    Args:
        fill: writes further initial files. `config.json` is written last and makes the folder a run.
    """
    for run_id in next_run_ids(runs_dir, config, numbering):
        run = RunDirectory(runs_dir / run_id)
        try:
            make(run, config, fill)
        except FileExistsError:
            continue
        return run
    raise AssertionError("numbers do not end")


def make(run: RunDirectory, config: Config, fill: Callable[[RunDirectory], None] | None = None) -> None:
    """Create the directory of this run; see `create`.

    Raises:
        FileExistsError: if it exists.
    """
    runs_dir = run.path.parent
    runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    run.path.mkdir(mode=private_files.run_mode(runs_dir))
    try:
        run.logs.mkdir()
        run.checkpoints.mkdir()
        if fill is not None:
            fill(run)
        write_json_atomically(run.config, config.to_json())
    except (OSError, ValueError):
        plain_files.remove(run.path)  # an incomplete run would occupy its number
        raise


def make_on_rank_0(run: RunDirectory, make: Callable[[], None]) -> str | None:
    """Create the directory of a run that torchrun has started from a terminal; other ranks wait for it.

    Returns:
        An error message, or None.
    """
    if os.environ.get("RANK", "0") != "0":
        deadline = time.monotonic() + MADE_WITHIN_S
        while not run.config.is_file():
            if time.monotonic() > deadline:
                return (
                    f"Rank 0 has not created {run.config}, or this machine cannot see it. Read the output "
                    "of rank 0, and check that both machines share this folder."
                )
            time.sleep(MADE_POLL_S)
        return None
    if run.path.exists():
        return f"{run.path} already exists: choose another name for the new run."
    try:
        make()
    except (OSError, ValueError) as error:
        return f"{run.path} cannot be created: {explain(error)}"
    return None


def open_run(runs_dir: Path, run_id: str) -> RunDirectory:
    """Return the run of this id.

    Raises:
        ValueError: if the run does not exist, the id is invalid, or a link points outside of the run.
    """
    run = find_run(runs_dir, run_id)
    plain_files.refuse_links(run.path)
    return run


def find_run(runs_dir: Path, run_id: str) -> RunDirectory:
    """Return the run of this id, to move but not to read: the run may be a link or contain links.

    Raises:
        ValueError: if it does not exist or the id is invalid.
    """
    if not is_run_id(run_id):
        raise ValueError(f"run_id is {str(run_id)[:80]!r}; allowed: the id of a run in the list")
    run = RunDirectory(runs_dir / run_id)
    # Not `Path.is_file`, which raises if the folder may not be entered.
    if not os.path.isfile(run.config):  # noqa: PTH113
        raise no_such_run(run_id)
    return run


def no_such_run(run_id: str) -> ValueError:
    """Return the error for a run that does not exist."""
    return ValueError(f"run_id is {run_id!r}, but there is no run of this id")
