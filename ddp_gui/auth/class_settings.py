"""The teacher's settings for the class, in one file of the runs directory."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainers.files import private_files
from trainers.files.json_files import read_json, write_json_atomically

# Not a valid run id.
FOLDER = ".class"
FILE = "settings.json"


@dataclass(frozen=True, kw_only=True)
class ClassSettings:
    """Applies only with a login."""

    # Whether everybody may view all runs, or only their owners (and teachers).
    everyone_sees: bool = True


# The settings while the file is invalid: nothing is shown by mistake.
STRICTEST = ClassSettings(everyone_sees=False)


class ClassSettingsFile:
    """Reads and changes the settings; changes by others take effect at the next read."""

    def __init__(self, runs_dir: Path) -> None:
        self.path = runs_dir / FOLDER / FILE
        self._lock = threading.Lock()
        self._mark: tuple[int, int, int] | None = None
        self._read = ClassSettings()

    def read(self) -> ClassSettings:
        """Return the settings as they are now."""
        mark = self._mark_now()
        with self._lock:
            if mark != self._mark:
                self._mark, self._read = mark, self._from_file()
            return self._read

    def change(self, **values: Any) -> ClassSettings:
        """Change the settings that are named.

        Raises:
            ValueError: naming the field, the value and what is allowed.
            OSError: when they cannot be written.
        """
        changed = checked(asdict(self.read()) | values)
        private_files.make_folder(self.path.parent)
        write_json_atomically(self.path, asdict(changed), mode=0o600)
        return changed

    def _from_file(self) -> ClassSettings:
        try:
            return checked(read_json(self.path, must_be_ours=True))
        except FileNotFoundError:
            return ClassSettings()
        except private_files.ForeignFileError as error:
            print(f"{error}. Until then nobody sees the runs of others.", flush=True)
            return STRICTEST
        except (OSError, ValueError, TypeError):
            return STRICTEST

    def _mark_now(self) -> tuple[int, int, int] | None:
        try:
            about = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return 0, 0, 0  # not a file: reading it returns the fallback
        return about.st_ino, about.st_size, about.st_mtime_ns


def checked(values: Any) -> ClassSettings:
    """Return settings of these values.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    if not isinstance(values, dict):
        raise ValueError(f"the settings are {str(values)[:80]!r}, but allowed is: one object")
    known = {field.name for field in fields(ClassSettings)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{str(name)[:80]!r} is no setting, but allowed is: {', '.join(sorted(known))}")
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {str(value)[:80]!r}, but allowed is: true or false")
    return ClassSettings(**values)
