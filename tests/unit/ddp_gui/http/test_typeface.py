"""Tests of the bundled typeface."""

from __future__ import annotations

import re

from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.http import shell
from trainers.files.plain_files import ASSETS

MOST_BYTES = 150_000
FILE = ASSETS.parent / shell.TYPEFACE.removeprefix("live/")


def test_it_is_small_and_kept_by_the_browser() -> None:
    app = FastAPI()
    app.include_router(shell.make_static_router())
    answer = TestClient(app).get(f"/{shell.TYPEFACE}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "font/woff2"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.content[:4] == b"wOF2"
    assert len(answer.content) <= MOST_BYTES


def test_its_open_licence_lies_beside_it() -> None:
    licence = (FILE.parent / "inter-LICENSE.txt").read_text()
    assert "SIL Open Font License, Version 1.1" in licence


def test_what_is_preloaded_is_what_the_styles_name() -> None:
    """Otherwise a browser fetches the typeface twice, and late."""
    colours = (ASSETS / "css" / "shared" / "colours.css").read_text()
    (named,) = re.findall(r'url\("\.\./\.\./fonts/(.+?)"\)', colours)
    assert named == FILE.name
    assert shell.TYPEFACE in shell.head()
