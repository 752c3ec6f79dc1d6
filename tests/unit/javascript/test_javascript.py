"""The page's pure JavaScript, run by Deno, and the layers of its folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DENO = Path(sys.executable).with_name("deno.exe" if os.name == "nt" else "deno")
TIMEOUT_S = 60
TESTS = sorted(path.name for path in Path(__file__).parent.glob("*_test.js"))


@pytest.mark.parametrize("name", TESTS)
def test_pure_modules_of_the_page(name: str, repository: Path, tmp_path: Path) -> None:
    file = Path(__file__).with_name(name)
    settings = repository / "tools" / "javascript" / "deno.json"
    own_cache = {"DENO_DIR": str(tmp_path), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    result = subprocess.run(
        [DENO, "test", "--no-check", "--no-remote", f"--config={settings}", file],
        env={**os.environ, **own_cache},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # A file without a test would pass as well.
    assert "... ok" in result.stdout, result.stdout


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
