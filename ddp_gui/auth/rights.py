"""Permissions: the current user, owners of runs, settings of the class, access to data."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainers.contract.config import Config, ConfigError, Problem
from trainers.contract.rundir import RunDirectory
from trainers.files import private_files, typed
from trainers.files.json_files import read_json, write_json_atomically
from trainers.files.plain_files import REPOSITORY

OWNER_FILE = "owner.json"
MAX_NAME = 320  # the longest e-mail address


def owner_of(run: RunDirectory) -> str | None:
    """Return the name of the run's owner, or None."""
    try:
        owner = read_json(run.path / OWNER_FILE)["owner"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return owner if isinstance(owner, str) and 0 < len(owner) <= MAX_NAME else None


def note_owner(run: RunDirectory, name: str) -> None:
    """Record the owner of a run.

    Raises:
        OSError: if the run's directory cannot be written.
    """
    write_json_atomically(run.path / OWNER_FILE, {"owner": name})


Role = Literal["teacher", "student"]
ROLES: tuple[Role, ...] = ("teacher", "student")

# Key of the current user in a request's scope, for handlers that run in another task.
SCOPE_KEY = "ddp_person"


@dataclass(frozen=True)
class Person:
    """A user with an account; the name is empty if no login is required."""

    name: str
    role: Role

    @property
    def is_teacher(self) -> bool:
        return self.role == "teacher"


# The current user of a page without login. Any client of the page may do everything.
EVERYBODY = Person(name="", role="teacher")
# The current user without a session on a page with login, who owns nothing and may change nothing.
NOBODY = Person(name="", role="student")

# No default: a request's context begins empty, and must not get the rights of a page without login.
_current_user: ContextVar[Person] = ContextVar("ddp_asking")
_default_user = EVERYBODY


def current_user() -> Person:
    """Return the current user."""
    return _current_user.get(_default_user)


def make_nobody_the_default_user() -> None:
    """From now on, make `NOBODY` the default user."""
    global _default_user
    _default_user = NOBODY


@contextlib.contextmanager
def acting_as(person: Person) -> Iterator[None]:
    """Make `current_user` return this person inside the block."""
    token = _current_user.set(person)
    try:
        yield
    finally:
        _current_user.reset(token)


# Not a valid run id.
FOLDER = ".class"
CLASS_SETTINGS_FILE = "settings.json"


@dataclass(frozen=True, kw_only=True)
class ClassSettings:
    """Settings of a page with login."""

    # True if all users may view all runs; False if only owners and teachers may.
    everyone_sees: bool = True
    # True if students may run their own scripts, in a sandbox.
    students_run_scripts: bool = False


# Settings while the file is invalid, which hide all runs of other users.
STRICTEST = ClassSettings(everyone_sees=False)


class ClassSettingsFile:
    """Reads and changes the settings; changes by other processes take effect at the next read."""

    def __init__(self, runs_dir: Path) -> None:
        self.path = runs_dir / FOLDER / CLASS_SETTINGS_FILE
        self._lock = threading.Lock()
        self._mark: tuple[int, int, int] | None = None
        self._read = ClassSettings()

    def read(self) -> ClassSettings:
        """Return the current settings."""
        mark = self._read_mark()
        with self._lock:
            if mark != self._mark:
                self._mark, self._read = mark, self._load()
            return self._read

    def change(self, **values: Any) -> ClassSettings:
        """Change the given settings.

        Raises:
            ValueError: naming the field, the value and the allowed values.
            OSError: if they cannot be written.
        """
        changed = parse_settings(asdict(self.read()) | values)
        private_files.make_folder(self.path.parent)
        write_json_atomically(self.path, asdict(changed), mode=0o600)
        return changed

    def _load(self) -> ClassSettings:
        try:
            return parse_settings(read_json(self.path, must_be_ours=True))
        except FileNotFoundError:
            return ClassSettings()
        except private_files.ForeignFileError as error:
            print(f"{error}. Until this is fixed, users see only their own runs.", flush=True)
            return STRICTEST
        except (OSError, ValueError, TypeError):
            return STRICTEST

    def _read_mark(self) -> tuple[int, int, int] | None:
        try:
            file_stat = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return 0, 0, 0  # not a file, so reading it returns the fallback
        return file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns


def parse_settings(values: Any) -> ClassSettings:
    """Return settings with these values.

    Raises:
        ValueError: naming the field, the value and the allowed values.
    """
    return typed.read(ClassSettings, values)


class NotAllowedError(ValueError):
    """The current user is not allowed to do this; the message says who is."""

    http_status = 403


def may_see(owner: str | None, settings: ClassSettings) -> bool:
    """Return True if the current user may view a run of this owner."""
    return may_change(owner) or settings.everyone_sees


def may_change(owner: str | None) -> bool:
    """Return True if the current user may stop, resume, rename or delete a run of this owner."""
    person = current_user()
    return person.is_teacher or (owner is not None and owner == person.name)


def require_change(run_id: str, owner: str | None) -> None:
    """Require the owner of a run, or a teacher.

    Raises:
        NotAllowedError: for all other users.
    """
    if not may_change(owner):
        owner_text = f"belongs to {owner}: only {owner}" if owner else "has no owner: only"
        raise NotAllowedError(f"run {run_id} {owner_text}{' or' if owner else ''} a teacher can change it")


def require_teacher(action: str) -> None:
    """Require a teacher; `action` names the action.

    Raises:
        NotAllowedError: for all other users.
    """
    if not current_user().is_teacher:
        raise NotAllowedError(f"only a teacher can {action}")


# Folder that contains a folder of uploads per user; without login, uploads are next to it.
PEOPLE = "people"
# The fields of a configuration with the path of a file or folder on this machine.
PATH_FIELDS = ("data_path", "images_path", "pretrained_path")
MAX_PATH_LENGTH = 4_096  # Linux's limit
NOT_PLAIN = f"a path of at most {MAX_PATH_LENGTH:,} characters without “..”"


def is_plain_path(path: Any) -> bool:
    """Return True if a value is a path that may be resolved: short, and without `..`.

    Resolving a path costs a system call for each of its parts.
    """
    return isinstance(path, str) and len(path) <= MAX_PATH_LENGTH and ".." not in path.split("/")


class DataAccess:
    """The folders whose files a user may read: the user's uploads, and folders from the page's options."""

    def __init__(self, uploads: Path, allowed: Sequence[Path] = ()) -> None:
        self._uploads = uploads
        self._allowed = tuple(allowed)

    def own_uploads(self) -> Path:
        """Return the current user's folder of uploads."""
        name = current_user().name
        return self._uploads / PEOPLE / name if name else self._uploads

    def check(self, config: Config) -> None:
        """Refuse files that the current user may not read, as if they did not exist, and any tracker address.

        Raises:
            ConfigError: naming the field, the path and the allowed values.
        """
        path_problems = [
            Problem(field=field, value=path, allowed=NOT_PLAIN)
            for field in PATH_FIELDS
            if not is_plain_path(path := getattr(config, field))
        ]
        if path_problems:
            raise ConfigError(path_problems)
        if current_user().is_teacher:
            return
        problems = [
            Problem(field=field, value=path, allowed=self._allowed_text())
            for field in PATH_FIELDS
            if (path := getattr(config, field)) and not self._may_read(path)
        ]
        if config.forward_address:
            allowed = "empty, because only a teacher may choose where the page sends data"
            problems.append(Problem(field="forward_address", value=config.forward_address, allowed=allowed))
        if problems:
            raise ConfigError(problems)

    def _may_read(self, path: str) -> bool:
        try:
            # Resolve the path like training: relative to its working directory, following links.
            resolved = Path(REPOSITORY, Path(path).expanduser()).resolve()
            own_folders = [self.own_uploads()] if current_user().name else []
            folders = [folder.resolve() for folder in (*own_folders, *self._allowed)]
        except (OSError, ValueError, RuntimeError):
            return False
        return any(resolved.is_relative_to(folder) for folder in folders)

    def _allowed_text(self) -> str:
        folders = " or ".join(str(folder) for folder in self._allowed)
        return "a file that you have uploaded" + (f", or a file below {folders}" if folders else "")
