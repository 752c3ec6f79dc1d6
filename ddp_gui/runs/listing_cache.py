"""A cache of the list of runs below the runs directory, so that the next start of the page has it at once.

It only copies what the runs' own files say: if it is missing, damaged or of another version, it is ignored.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from ddp_gui.plan.catalogue import Catalogue
from trainers.files import private_files

# Incremented when the meaning of the content changes.
FORMAT = 2


def path_in(runs_dir: Path) -> Path:
    """Return the path of the cache; the folder's name is not a valid run id."""
    return runs_dir / ".cache" / "list.json"


def key_of(catalogue: Catalogue) -> str:
    """Return a key of what labels and lengths were derived from."""
    return hashlib.sha256(orjson.dumps(catalogue.raw, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()


def load(runs_dir: Path, catalogue_key: str) -> dict[str, Any]:
    """Return the cached entry of each run; none if the cache is unusable."""
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
    """Replace the cache.

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
