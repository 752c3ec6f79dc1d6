"""Keeps what a person uploads in a folder beside the runs, under a name of ours."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

KINDS = (".zip", ".csv", ".tsv", ".parquet", ".txt")
MAX_BYTES = 2 * 1024**3


def keep(uploaded: str, folder: Path) -> Path:
    """Move an uploaded file into `folder` and return where it is now.

    Raises:
        ValueError: when it is not of a kind that can be trained on.
    """
    source = Path(uploaded)
    if source.suffix.lower() not in KINDS:
        raise ValueError(
            f"a file of kind {source.suffix or 'none'} cannot be used; one of {', '.join(KINDS)} can"
        )
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", source.stem)[:60].strip("-_") or "data"
    number = 0
    while True:
        target = folder / f"{stem}{f'-{number}' if number else ''}{source.suffix.lower()}"
        try:
            target.touch(exist_ok=False)
        except FileExistsError:
            number += 1
            continue
        shutil.move(source, target)
        return target.resolve()
