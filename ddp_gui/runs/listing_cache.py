"""What the list knew, kept below the runs directory so that the next start of the page has it at once.

Only a copy of what the runs' own files say: deleted, cut short or of another version it is left aside.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from ddp_gui.plan.catalogue import Catalogue
from trainers.files import private_files

# Raised when the meaning of what is kept changes.
FORMAT = 2


def path_in(runs_dir: Path) -> Path:
    """Return where the copy lies; the folder's name can be no run's."""
    return runs_dir / ".cache" / "list.json"


def key_of(catalogue: Catalogue) -> str:
    """Sum up what labels and lengths were derived from."""
    return hashlib.sha256(orjson.dumps(catalogue.raw, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()


def load(runs_dir: Path, catalogue_key: str) -> dict[str, Any]:
    """Return what was kept of each run; nothing where it cannot be used."""
    try:
        with private_files.open_own(path_in(runs_dir)) as file:
            kept = orjson.loads(file.read())
        fits = kept["format"] == FORMAT and kept["catalogue"] == catalogue_key
        runs = kept["runs"]
    except private_files.ForeignFileError as error:
        print(f"{error}. The list of runs is read again.", flush=True)
        return {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return runs if fits and isinstance(runs, dict) else {}


def save(runs_dir: Path, catalogue_key: str, runs: dict[str, Any]) -> None:
    """Replace what was kept.

    Raises:
        OSError: when it cannot be written.
        ForeignFileError: when another user owns the folder.
    """
    path = path_in(runs_dir)
    private_files.make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Not synced: after a power cut it may be missing, which costs one slow start.
        aside.write_bytes(orjson.dumps({"format": FORMAT, "catalogue": catalogue_key, "runs": runs}))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
