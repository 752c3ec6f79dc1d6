"""Which files of this machine a run may read: students have their uploads and the folders of `--data-dir`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddp_gui.auth.current_user import current_user
from trainers.contract.config import Config, ConfigError, Problem
from trainers.files.paths import REPOSITORY

# Without a login, uploads lie beside it.
PEOPLE = "people"
# The fields of a configuration that name a file or a folder of this machine.
PATH_FIELDS = ("data_path", "images_path", "pretrained_path")
MAX_PATH_LENGTH = 4_096  # what Linux accepts
NOT_PLAIN = f"a path of at most {MAX_PATH_LENGTH:,} characters without “..”"


def is_plain(path: Any) -> bool:
    """Return True if a value is a path that may be looked up: short, and without `..`.

    Resolving a path costs a call of the system for each of its parts.
    """
    return isinstance(path, str) and len(path) <= MAX_PATH_LENGTH and ".." not in path.split("/")


class DataAccess:
    """The folders of uploads, and those that were named when the page was started."""

    def __init__(self, uploads: Path, allowed: Sequence[Path] = ()) -> None:
        self._uploads = uploads
        self._allowed = tuple(allowed)

    def own_uploads(self) -> Path:
        """Return the current user's folder of uploads."""
        name = current_user().name
        return self._uploads / PEOPLE / name if name else self._uploads

    def check(self, config: Config) -> None:
        """Refuse files that the current user may not read; they are reported as not existing.

        Raises:
            ConfigError: naming the field, the path and what is allowed.
        """
        faulty = [
            Problem(field=field, value=path, allowed=NOT_PLAIN)
            for field in PATH_FIELDS
            if not is_plain(path := getattr(config, field))
        ]
        if faulty:
            raise ConfigError(faulty)
        if current_user().is_teacher:
            return
        problems = [
            Problem(field=field, value=path, allowed=self._in_words())
            for field in PATH_FIELDS
            if (path := getattr(config, field)) and not self._may_read(path)
        ]
        if problems:
            raise ConfigError(problems)

    def _may_read(self, path: str) -> bool:
        try:
            # Resolved as training resolves it: relative to its directory, links followed.
            wanted = Path(REPOSITORY, Path(path).expanduser()).resolve()
            own = [self.own_uploads()] if current_user().name else []
            folders = [folder.resolve() for folder in (*own, *self._allowed)]
        except (OSError, ValueError, RuntimeError):
            return False
        return any(wanted.is_relative_to(folder) for folder in folders)

    def _in_words(self) -> str:
        folders = " or ".join(str(folder) for folder in self._allowed)
        return "a file that you uploaded here" + (f", or one below {folders}" if folders else "")
