"""Tests of run owners, including owner files from untrusted sources."""

from __future__ import annotations

import pytest

from ddp_gui.auth import rights
from trainers.contract.rundir import RunDirectory


def test_an_owner_is_remembered(run: RunDirectory) -> None:
    assert rights.owner_of(run) is None
    rights.note_owner(run, "ann")
    assert rights.owner_of(run) == "ann"


@pytest.mark.parametrize("text", ["", "[]", '{"owner": 3}', '{"owner": ""}', '{"name": "ann"}', "\x00"])
def test_a_file_that_says_nothing_makes_nobody_the_owner(run: RunDirectory, text: str) -> None:
    (run.path / rights.OWNER_FILE).write_text(text)
    assert rights.owner_of(run) is None
