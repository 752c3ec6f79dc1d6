"""A fake pip that downloads nothing, in its own environment (python -m tests.unit.fake_pip)."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

FAKE_PIP = '''
"""Not pip: notes what it is asked, and leaves names and versions behind."""

import os
import sys
from pathlib import Path

site = Path(__file__).resolve().parent.parent
if sys.argv[1] not in ("--version", "config"):
    with open(os.environ["FAKE_PIP_NOTES"], "a") as notes:
        notes.write(" ".join(sys.argv[1:]) + "\\n")
    if "FAKE_PIP_IS_CUT_OFF" in os.environ:
        sys.exit(1)
    files = [word for before, word in zip(sys.argv, sys.argv[1:]) if before == "-r"]
    for line in "\\n".join(Path(file).read_text() for file in files).split():
        name, version = line.split("==")
        for old in site.glob(name + "-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        made = site / f"{name}-{version}.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
'''


def make_environment(folder: Path) -> None:
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "pip").mkdir()
    (site / "pip" / "__init__.py").touch()
    (site / "pip" / "__main__.py").write_text(FAKE_PIP)


if __name__ == "__main__":
    make_environment(Path(sys.argv[1]))
