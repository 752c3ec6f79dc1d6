"""Whose a run is, in `owner.json`; training does not read it.

No file, or one that says nothing: nobody's, so that where people log in only a teacher may change it.
"""

from __future__ import annotations

from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically

FILE = "owner.json"


def owner_of(run: RunDirectory) -> str | None:
    """Return the name of the run's owner; None where nobody owns it."""
    try:
        owner = read_json(run.path / FILE)["owner"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return owner if isinstance(owner, str) and owner else None


def note_owner(run: RunDirectory, name: str) -> None:
    """Write down whose a run is.

    Raises:
        OSError: when the run's directory cannot be written.
    """
    write_json_atomically(run.path / FILE, {"owner": name})
