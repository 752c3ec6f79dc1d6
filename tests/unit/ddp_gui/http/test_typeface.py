"""Tests of the bundled typeface."""

from __future__ import annotations

import re

from ddp_gui.http import shell
from trainers.files.plain_files import ASSETS

FILE = ASSETS.parent / shell.TYPEFACE.removeprefix("live/")


def test_its_open_licence_lies_beside_it() -> None:
    licence = (FILE.parent / "inter-LICENSE.txt").read_text()
    assert "SIL Open Font License, Version 1.1" in licence


def test_what_is_preloaded_is_what_the_styles_name() -> None:
    """Otherwise a browser fetches the typeface twice, and late."""
    colours = (ASSETS / "css" / "shared" / "colours.css").read_text()
    (named,) = re.findall(r'url\("\.\./\.\./fonts/(.+?)"\)', colours)
    assert named == FILE.name
    assert shell.TYPEFACE in shell.head()
