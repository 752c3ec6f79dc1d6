"""Tests of name, tags and note: validation, and files from untrusted sources."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_gui.runs import listing
from ddp_gui.runs.listing import RunNotes
from trainers.contract.rundir import RunDirectory


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "x" * 201}, "name is .* allowed: a text of at most 200 characters"),
        ({"name": "two\nlines"}, "name is .* allowed: one line of text"),
        ({"name": 5}, "name is 5; allowed: a text"),
        ({"name": "\ud800"}, "half a surrogate pair"),
        ({"tags": "one"}, "tags is 'one'; allowed: a list of texts"),
        ({"tags": ["a,b"]}, "without a comma"),
        ({"tags": ["x" * 41]}, "at most 40 characters"),
        ({"tags": [str(n) for n in range(21)]}, "tags are 21; allowed: at most 20"),
        ({"note": "x" * 10_001}, "at most 10,000 characters"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        listing.change_notes(RunNotes(), **given)


@pytest.mark.parametrize(
    "text", ["", "{half", "[]", "5", '{"name": [1], "tags": {"a": 1}, "note": null}', "\xff"]
)
def test_a_file_of_anybodys_making_is_left_aside(run: RunDirectory, text: str) -> None:
    (run.path / listing.FILE).write_text(text, encoding="latin-1")
    assert listing.read_notes(run) == RunNotes()
