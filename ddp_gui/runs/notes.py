"""A run's annotations, in `notes.json`: a name, tags, a note.

Training never reads it, and `config.json` stays unchanged. A copied run may contain any file: invalid values
are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainers.contract.rundir import RunDirectory
from trainers.files.json_files import read_json, write_json_atomically

FILE = "notes.json"
MAX_NAME = 200
MAX_TAGS = 20
MAX_TAG = 40
MAX_NOTE = 10_000


@dataclass(frozen=True, kw_only=True)
class RunNotes:
    """The annotations of one run; an empty name leaves the configuration's."""

    name: str = ""
    tags: tuple[str, ...] = ()
    note: str = ""


def read(run: RunDirectory) -> RunNotes:
    """Return a run's annotations; empty if the file is missing or invalid."""
    try:
        raw = read_json(run.path / FILE)
    except (OSError, ValueError):
        return RunNotes()
    found = RunNotes()
    for field in ("name", "tags", "note"):
        try:
            found = changed(found, **{field: raw[field]})
        except (ValueError, LookupError, TypeError):
            continue
    return found


def write(run: RunDirectory, notes: RunNotes) -> None:
    """Write a run's annotations.

    Raises:
        OSError: when the run's directory cannot be written.
    """
    write_json_atomically(run.path / FILE, asdict(notes))


def changed(
    notes: RunNotes, *, name: str | None = None, tags: Sequence[str] | None = None, note: str | None = None
) -> RunNotes:
    """Return the annotations with these changes; None leaves a value unchanged.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    if name is not None:
        notes = replace(notes, name=_one_line("name", name, MAX_NAME))
    if tags is not None:
        notes = replace(notes, tags=_checked_tags(tags))
    if note is not None:
        notes = replace(notes, note=_text("note", note, MAX_NOTE))
    return notes


def named(run: RunDirectory, config_name: str) -> dict[str, Any]:
    """Return a run's displayed name, its tags and its note."""
    notes = read(run)
    return asdict(notes) | {"name": notes.name or config_name or run.run_id, "tags": list(notes.tags)}


def _checked_tags(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise ValueError(f"tags is {_shown(tags)}, but allowed is: a list of texts")
    checked = dict.fromkeys(_one_line("tags", tag, MAX_TAG) for tag in tags)
    if any("," in tag for tag in checked):
        raise ValueError(f"tags is {_shown(tags)}, but allowed is: texts without a comma")
    checked.pop("", None)
    if len(checked) > MAX_TAGS:
        raise ValueError(f"tags are {len(checked)}, but allowed is: at most {MAX_TAGS}")
    return tuple(checked)


def _one_line(field: str, value: Any, max_length: int) -> str:
    text = _text(field, value, max_length)
    if any(ord(character) < 32 or character == "\x7f" for character in text):
        raise ValueError(f"{field} is {_shown(value)}, but allowed is: one line of text")
    return text


def _text(field: str, value: Any, max_length: int) -> str:
    if not isinstance(value, str) or len(value.strip()) > max_length:
        raise ValueError(
            f"{field} is {_shown(value)}, but allowed is: a text of at most {max_length:,} characters"
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{field} holds half a surrogate pair, but allowed is: whole characters")
    return value.strip()


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "…"
