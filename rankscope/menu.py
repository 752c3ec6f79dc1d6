"""Add the installed program to the menu of a Linux desktop: a .desktop file and an icon, for this user."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import rankscope

ENTRY = """[Desktop Entry]
Type=Application
Name=Rankscope
Comment=Distributed training you can see
Exec={command} start
Icon=rankscope
Terminal=true
Categories=Education;Science;
StartupNotify=false
"""


def add(share: Path, command: list[str]) -> Path:
    """Write the entry and the icon below a folder `share`; return the path of the entry.

    Raises:
        OSError: if they cannot be written.
    """
    root = rankscope.add_to_path()
    icons, entries = share / "icons" / "hicolor" / "scalable" / "apps", share / "applications"
    for folder in (icons, entries):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(root / "assets" / "icons" / "favicon.svg", icons / "rankscope.svg")
    entry = entries / "rankscope.desktop"
    entry.write_text(ENTRY.format(command=" ".join(map(_quoted, command))), encoding="utf-8")
    entry.chmod(0o755)
    return entry


def _quoted(word: str) -> str:
    """Return a word quoted according to the specification of desktop entries."""
    for letter in '\\"`$':
        word = word.replace(letter, f"\\{letter}")
    # Escape twice, because the string is unescaped before the command line; % begins a field code.
    return f'"{word}"'.replace("\\", "\\\\").replace("%", "%%")


def main(arguments: Sequence[str]) -> int:
    """Add the entry for this user; return the exit code."""
    argparse.ArgumentParser(prog="rankscope add-to-menu", description=__doc__).parse_args(arguments)
    rankscope.add_to_path()
    from trainers.files import installation

    if sys.platform != "linux":
        print("A menu entry is possible only on Linux desktops.", file=sys.stderr)
        return 2
    try:
        entry = add(installation.data_folder().parent, [sys.executable, "-m", "rankscope"])
    except (OSError, ValueError) as error:
        print(f"The menu entry was not written: {error}", file=sys.stderr)
        return 1
    print(f"Rankscope is now in the application menu: {entry}")
    return 0
