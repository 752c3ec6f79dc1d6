"""Tests of name, tags and note: validation, and files from untrusted sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddp_gui.runs import listing
from ddp_gui.runs.listing import RunNotes
from trainers.contract.rundir import RunDirectory

HOSTILE = "<img src=x onerror=alert(1)>"


def test_what_is_written_is_read(run: RunDirectory) -> None:
    written = listing.change_notes(
        RunNotes(), name=f" {HOSTILE} ", tags=["a", "b", "a", " "], note="two\nlines"
    )
    listing.write_notes(run, written)
    assert listing.read_notes(run) == RunNotes(name=HOSTILE, tags=("a", "b"), note="two\nlines")
    assert listing.shown_name(run, "configured") == {
        "name": HOSTILE,
        "tags": ["a", "b"],
        "note": "two\nlines",
    }


def test_the_name_is_that_of_the_configuration_until_another_is_given(run: RunDirectory) -> None:
    assert listing.shown_name(run, "configured")["name"] == "configured"
    assert listing.shown_name(run, "")["name"] == run.run_id


def test_what_is_null_stays(run: RunDirectory) -> None:
    before = RunNotes(name="n", tags=("t",), note="w")
    assert listing.change_notes(before) == before
    assert listing.change_notes(before, tags=[]) == RunNotes(name="n", note="w")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "x" * 201}, "name is .* allowed is: a text of at most 200 characters"),
        ({"name": "two\nlines"}, "name is .* allowed is: one line of text"),
        ({"name": 5}, "name is 5, but allowed is: a text"),
        ({"name": "\ud800"}, "half a surrogate pair"),
        ({"tags": "one"}, "tags is 'one', but allowed is: a list of texts"),
        ({"tags": ["a,b"]}, "without a comma"),
        ({"tags": ["x" * 41]}, "at most 40 characters"),
        ({"tags": [str(n) for n in range(21)]}, "tags are 21, but allowed is: at most 20"),
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


def test_what_fits_of_a_file_is_kept(run: RunDirectory) -> None:
    (run.path / listing.FILE).write_text(json.dumps({"name": "x" * 300, "tags": ["good"], "note": 1}))
    assert listing.read_notes(run) == RunNotes(tags=("good",))
