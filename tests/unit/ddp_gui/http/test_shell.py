"""The glossary, the bundled typeface and the style sheets."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.http import shell
from trainers.contract import config
from trainers.files.plain_files import ASSETS

IN_A_SCRIPT = re.compile(r'\bterm(?:\(\s*|: )"([^"]+)"')
IN_PYTHON = re.compile(r"""glossary_term\(\s*["']([^"']+)["']""")


def named(root: Path, pattern: str, call: re.Pattern[str]) -> dict[str, str]:
    """Return the terms that occur in calls in the files, each with its file."""
    found = {}
    for path in sorted(root.rglob(pattern)):
        for name in call.findall(path.read_text(encoding="utf-8")):
            found[name] = path.relative_to(root).as_posix()
    return found


def test_every_tooltip_of_the_page_is_in_the_glossary(repository: Path) -> None:
    scripts = named(repository / "assets" / "js", "*.js", IN_A_SCRIPT)
    python = named(repository / "ddp_gui", "*.py", IN_PYTHON)
    fields = {setting.term: name for name, setting in config.settings().items() if setting.term}
    assert {"all-reduce", "throughput", "bus bandwidth", "evaluation"} <= scripts.keys()
    assert {"global batch", "accumulation"} <= python.keys() and "learning rate" in fields
    missing = {
        name: where for name, where in (scripts | python | fields).items() if name not in shell.definitions()
    }
    assert missing == {}


def test_the_browser_gets_the_definitions_and_the_fields_terms() -> None:
    app = FastAPI()
    app.include_router(shell.make_glossary_router())
    answer = TestClient(app).get("/live/glossary").json()
    assert answer["definitions"]["epoch"] == "One pass over all training samples."
    assert answer["fields"]["batch_size"] == "batch per rank"
    assert "`" not in "".join(answer["definitions"].values()), "a tooltip is plain text"


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
