"""The docs agree with the code."""

from __future__ import annotations

import json
import re
import sys
from inspect import Parameter
from pathlib import Path

import pytest

from benchmarks import __main__ as everything
from benchmarks.readme_table import ROWS, table
from ddp_gui import operations, server
from tests import adding
from tests.harness import REPOSITORY
from tools import config_table
from trainers.contract import commands, config, events

DOCS = REPOSITORY / "docs"
PAGES = (*DOCS.glob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md")
# Files that the page on extending the project tells its reader to create.
TO_BE_MADE = set(adding.new_files())


def test_the_table_of_fields_is_todays() -> None:
    page = config_table.PAGE.read_text(encoding="utf-8")
    assert config_table.render(page) == page, "run: python -m tools.config_table"


def test_every_event_kind_is_described_with_all_its_fields() -> None:
    page = (DOCS / "events.md").read_text(encoding="utf-8")
    described = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert described.keys() == events.FIELDS.keys()
    for kind, fields in events.FIELDS.items():
        assert tuple(re.findall(r"`(\w+)`", described[kind])) == fields


def test_every_command_is_described() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == set(commands.COMMAND_NAMES)


def test_every_operation_has_a_row_with_its_access_and_arguments() -> None:
    page = (DOCS / "endpoints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `/(\w+)` \| ([^|]+) \| ([^|]*?) ?\| [^|]+ \|$", page, re.MULTILINE)
    assert server.__name__ in sys.modules, "it imports every module with operations"
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("ddp_gui.")]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    list_operations = {about.name: about for kind in kinds for about in operations.list_operations(kind)}
    assert len(list_operations) > 50 and len(rows) == len(list_operations)
    accesses = {name: access for name, access, _ in rows}
    assert accesses == {name: each.access for name, each in list_operations.items()}
    for name, _, arguments in rows:
        expected = [
            f"`{each.name}`" + ("" if each.default is Parameter.empty else f" = {json.dumps(each.default)}")
            for each in list_operations[name].signature.parameters.values()
        ]
        places = [arguments.find(text) for text in expected]
        assert -1 not in places and places == sorted(places), f"/{name}: {expected}, but {arguments}"


def test_links_between_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / Path(target)).exists(), f"{page.name} links to {target}"


def test_the_schema_version_is_todays() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    known = re.findall(r"schema (\d+), and this version reads up to (\d+)", text)
    assert known == [(str(config.SCHEMA_VERSION + 1), str(config.SCHEMA_VERSION))]
    (todays,) = re.findall(r"`schema_version` \(today (\d+);", text)
    assert int(todays) == config.SCHEMA_VERSION == max(config.READABLE_VERSIONS)


def test_docs_name_only_files_that_are_there() -> None:
    gone = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        paths = set(
            re.findall(r"(?<![\w/.])(?:benchmarks|tests|tools|trainers|ddp_gui|docs|assets)/[\w./-]*\w", text)
        )
        gone += [f"{page.name}: {path}" for path in paths - TO_BE_MADE if not (REPOSITORY / path).exists()]
    assert gone == []


def test_every_row_is_of_a_script_there_is() -> None:
    assert {script for _, script, _ in ROWS} <= everything.SCRIPTS.keys()


@pytest.mark.parametrize("line", table(json.loads(everything.FIGURES.read_text())).splitlines())
def test_the_readme_has_the_figures_that_were_measured(line: str) -> None:
    assert line in (REPOSITORY / "README.md").read_text(encoding="utf-8")
