"""The page's tooltips: the definitions in docs/glossary.md, and the terms that the form's fields show."""

from __future__ import annotations

import functools
import html
import re
from pathlib import Path

from fastapi import APIRouter

from trainers.contract import config
from trainers.files.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "glossary.md"
_HEAD = re.compile(r"^\| term \|[^\n]*\n\|[-|]+\|\n", re.MULTILINE)


def parse(page: Path) -> dict[str, str]:
    """Return the definition of each term in the page's table.

    Raises:
        ValueError: naming the line that is not a row of two cells, or the term that stands there twice.
    """
    found: dict[str, str] = {}
    for line in _HEAD.split(page.read_text(encoding="utf-8"))[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 2 or not all(cells):
            raise ValueError(f"{page.name}: {line!r} is not a row of a term and its definition")
        term, definition = cells
        if term in found:
            raise ValueError(f"{page.name} defines {term} twice")
        found[term] = definition.replace("`", "")
    return found


@functools.cache
def definitions() -> dict[str, str]:
    """Return the definition of each term."""
    return parse(PAGE)


def terms_of_fields() -> dict[str, str]:
    """Return the term that explains a field's label, by field."""
    return {name: setting.term for name, setting in config.settings().items() if setting.term}


def term(name: str, words: str = "") -> str:
    """Return the HTML of a term with a tooltip, written as `words` where they are given."""
    assert name in definitions(), name
    shown, escaped = html.escape(words or name), html.escape(name, quote=True)
    return f'<button type="button" class="ddp-term" data-term="{escaped}">{shown}</button>'


def make_router() -> APIRouter:
    """Return the route that a browser reads the tooltips from."""
    router = APIRouter(prefix="/live")

    @router.get("/glossary")
    def glossary() -> dict[str, dict[str, str]]:
        return {"definitions": definitions(), "fields": terms_of_fields()}

    return router
