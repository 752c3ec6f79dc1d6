"""Tests of the page's pure JavaScript in `tests/unit/javascript`, run by Deno, a single binary from PyPI."""

from __future__ import annotations

import os
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
