"""The glossary is well-formed, and every tooltip on the page refers to one of its terms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.http import shell
from trainers.contract import config

IN_A_SCRIPT = re.compile(r'\bterm(?:\(\s*|: )"([^"]+)"')
IN_PYTHON = re.compile(r"""glossary_term\(\s*["']([^"']+)["']""")
MOST_CHARACTERS = 180


def named(root: Path, pattern: str, call: re.Pattern[str]) -> dict[str, str]:
    """Return the terms that occur in calls in the files, each with its file."""
    found = {}
    for path in sorted(root.rglob(pattern)):
        for name in call.findall(path.read_text(encoding="utf-8")):
            found[name] = path.relative_to(root).as_posix()
    return found


def test_each_term_has_one_short_sentence_in_alphabetical_order() -> None:
    terms = shell.definitions()
    assert len(terms) > 40
    assert list(terms) == sorted(terms, key=str.lower)
    for term, words in terms.items():
        assert re.fullmatch(r"[A-Z0-9].*[\w)]\.", words), f"{term}: {words}"
        assert len(words) <= MOST_CHARACTERS and ". " not in words, f"{term}: {words}"


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


def test_a_term_is_a_button_that_names_its_tooltip() -> None:
    made = shell.glossary_term("batch per rank", "per <rank>")
    assert (
        made == '<button type="button" class="ddp-term" data-term="batch per rank">per &lt;rank&gt;</button>'
    )
    with pytest.raises(AssertionError, match="no such term"):
        shell.glossary_term("no such term")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("| rank |", "is not a row"),
        ("| rank | one | two |", "is not a row"),
        ("| epoch | One pass. |", "defines epoch twice"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, row: str, words: str) -> None:
    page = tmp_path / "glossary.md"
    page.write_text(f"# Glossary\n\n| term | what it is |\n|---|---|\n| epoch | One pass. |\n{row}\n")
    with pytest.raises(ValueError, match=words):
        shell.parse_glossary(page)
