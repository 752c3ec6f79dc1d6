"""Tests of the bundled typeface and of the style sheets."""

from __future__ import annotations

import re

from ddp_gui.http import shell
from ddp_gui.learn.report import lesson_page
from ddp_gui.notebook import live
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


def test_every_sheet_belongs_to_a_page() -> None:
    sheets = {
        str(path.relative_to(ASSETS / "css").with_suffix("")) for path in (ASSETS / "css").rglob("*.css")
    }
    assert set(shell.STYLES) <= sheets
    # The form to log in has no other sheet; the editor's is loaded with the editor.
    assert sheets - {*shell.STYLES, *lesson_page.STYLES, *live.STYLES} == {"auth/login", "script/editor"}


def test_no_two_sheets_set_the_same_property_of_a_class() -> None:
    """All sheets are on all pages: the later one would change the parts of the other."""
    found: dict[tuple[str, str], str] = {}
    flags = re.MULTILINE | re.DOTALL
    for name in shell.STYLES:
        text = (ASSETS / "css" / f"{name}.css").read_text()
        for block in re.findall(r"^:is\(\.ddp, #ddp\) \{\n(.*?)^\}", text, flags):
            for part, rule in re.findall(r"(?<!,\n)^  (\.ddp-[\w-]+) \{\n(.*?)^  \}", block, flags):
                for style in re.findall(r"^    ([\w-]+):", rule, re.MULTILINE):
                    assert found.setdefault((part, style), name) == name, f"{part} in {name}"
    assert len(found) > 500
