"""Tests of data inspection: one JSON object with faults, a preview and the compatible models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import (
    make_images,
    own_cache,  # noqa: F401 - a fixture
    write,
)
from trainers.data.dataset import DataOptions
from trainers.plugins import inspect_data


def inspect(path: Path, *, prepare: bool = False, **options: Any) -> dict[str, Any]:
    """Inspect the data and return the answer after a round trip through JSON."""
    answer = inspect_data.inspect(DataOptions(path=str(path), **options), prepare=prepare)
    kept: dict[str, Any] = json.loads(json.dumps(answer, allow_nan=False))
    return kept


@pytest.mark.slow
def test_large_data_is_only_looked_at(
    tmp_path: Path,
    own_cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspect_data, "SMALL_NUM_IMAGES", 10)
    monkeypatch.setattr(inspect_data, "SMALL_FILE_BYTES", 10)
    images = make_images(tmp_path / "d", {"a": 10, "b": 20})
    table = write(tmp_path / "t.csv", "x,y", *[f"{i * 7 % 50},{'ab'[i % 2]}" for i in range(50)])
    text = write(tmp_path / "t.txt", *["some words"] * 100)
    for path in (images, table, text):
        seen = inspect(path)
        assert seen["ok"] and seen["is_estimate"] and not seen["is_prepared"]
        assert [found for found in own_cache.iterdir() if found.is_dir()] == []
        prepared = inspect(path, prepare=True)
        assert prepared["is_prepared"] and not prepared["is_estimate"]
        assert prepared["dataset"] == seen["dataset"], "what was estimated is what it is"
        for folder in own_cache.iterdir():
            if folder.is_dir():
                folder.rename(tmp_path / folder.name)


def test_faults_are_told_and_nothing_is_prepared(tmp_path: Path, own_cache: Path) -> None:  # noqa: F811
    path = make_images(tmp_path / "d", {"a": 3, "b": 3, "c": 1})
    seen = inspect(path)
    assert not seen["ok"] and seen["dataset"] is None and seen["num_problems"] == 2
    fatal = [problem for problem in seen["problems"] if problem["is_fatal"]]
    assert [(problem["where"], problem["line"]) for problem in fatal] == [("c", None)]
    assert seen["preview"]["class_counts"] == {"a": 3, "b": 3, "c": 1}, "what is right is shown all the same"
    assert list(own_cache.iterdir()) == []


def test_missing_package_is_an_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    seen = inspect(tmp_path / "t.xlsx")
    assert not seen["ok"] and "need python-calamine" in seen["problems"][0]["message"]


@pytest.mark.slow
def test_command_prints_one_object_even_of_names_that_are_no_unicode(
    tmp_path: Path, repository: Path
) -> None:
    path = make_images(tmp_path / "d", {"a": 3, "b": 3})
    (path / "a").rename(path / os.fsdecode(b"\xff\xfe"))
    command = [sys.executable, "-m", "trainers.plugins.inspect_data", "--path", str(path), "--task", "auto"]
    ended = subprocess.run(command, cwd=repository, capture_output=True, timeout=300, check=True)
    seen = json.loads(ended.stdout)
    assert seen["ok"] and sorted(seen["preview"]["class_counts"].values()) == [3, 3]
    assert "prepared in" in ended.stderr.decode()
