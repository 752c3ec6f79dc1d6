"""The docs say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness import REPOSITORY
from tools import config_table
from trainers.contract import events, rundir

DOCS = REPOSITORY / "docs"


def test_the_table_of_fields_is_todays() -> None:
    page = config_table.PAGE.read_text(encoding="utf-8")
    assert config_table.render(page) == page, "run: python -m tools.config_table"


def test_every_event_kind_is_described_with_all_its_fields() -> None:
    page = (DOCS / "events.md").read_text(encoding="utf-8")
    described = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert described.keys() == events.FIELDS.keys()
    for kind, fields in events.FIELDS.items():
        assert tuple(re.findall(r"`(\w+)`", described[kind])) == fields


def test_every_command_and_endpoint_is_described() -> None:
    commands = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", commands, re.MULTILINE)) == set(rundir.COMMAND_NAMES)
    endpoints = (DOCS / "endpoints.md").read_text(encoding="utf-8")
    modules = (REPOSITORY / "ddp_gui").rglob("*api.py")
    calls = "\n".join(re.findall(r"register\(([^()]+)\)", "".join(path.read_text() for path in modules)))
    registered = set(re.findall(r"self\.(\w+)", calls))
    assert registered
    assert set(re.findall(r"^\| `/(\w+)`", endpoints, re.MULTILINE)) == registered


def test_links_between_the_docs_lead_somewhere() -> None:
    for page in (*DOCS.glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / Path(target)).exists(), f"{page.name} links to {target}"
