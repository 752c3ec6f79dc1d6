"""The owner of a run, in `owner.json`; training does not read it.

Without a valid file the run has no owner: with a login, only a teacher may change it.
"""

from __future__ import annotations

from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically

FILE = "owner.json"
MAX_NAME = 320  # the longest address of e-mail


def owner_of(run: RunDirectory) -> str | None:
    """Return the name of the run's owner; None if it has none."""
    try:
        owner = read_json(run.path / FILE)["owner"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return owner if isinstance(owner, str) and 0 < len(owner) <= MAX_NAME else None


def note_owner(run: RunDirectory, name: str) -> None:
    """Record the owner of a run.

    Raises:
        OSError: when the run's directory cannot be written.
    """
    write_json_atomically(run.path / FILE, {"owner": name})
