"""Layers of the page's JavaScript folders: imports only go down, as in `ddp_gui`."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A folder imports only from lower lines; folders of the same line do not import each other.
LAYERS = (
    ("",),
    ("notebook",),
    ("learn",),
    ("queue", "run", "train"),
    ("machine",),
    ("runs", "script"),
    ("auth", "charts"),
    ("shared",),
)
IMPORTED = re.compile(r'(?:from |import\()"(\.[^"]+)"')


def arrows(scripts: Path) -> set[tuple[str, str]]:
    """Return the imports between top-level folders as (source, target); the root has an empty name."""
    found = set()
    for script in scripts.rglob("*.js"):
        for way in IMPORTED.findall(script.read_text(encoding="utf-8")):
            imported = Path(os.path.normpath(script.parent / way))
            assert imported.is_file(), f"{script} imports {way}"
            found.add((top_folder(script, scripts), top_folder(imported, scripts)))
    return {(source, target) for source, target in found if source != target}


def top_folder(script: Path, scripts: Path) -> str:
    folders = script.relative_to(scripts).parts[:-1]
    return folders[0] if folders else ""


def test_arrows_between_folders_only_go_down(repository: Path) -> None:
    scripts = repository / "assets" / "js"
    level = {folder: height for height, layer in enumerate(LAYERS) for folder in layer}
    assert level.keys() == {top_folder(script, scripts) for script in scripts.rglob("*.js")}
    found = arrows(scripts)
    assert len(found) > 15
    assert not {(source, target) for source, target in found if level[source] >= level[target]}
