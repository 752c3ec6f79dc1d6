"""Tests of data inspection: one JSON object with faults, a preview and the compatible models."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.own_files import (
    make_images,
    own,
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
def test_images_are_described_with_thumbnails_and_models(tmp_path: Path) -> None:
    path = make_images(tmp_path / "d", {"a": 10, "b": 20})
    seen = inspect(path)
    assert (seen["ok"], seen["kind"], seen["task"]) == (True, "images", "image_classification")
    assert seen["preview"]["class_counts"] == {"a": 10, "b": 20}
    thumbnails = seen["preview"]["thumbnails"]
    assert len(thumbnails) == 12 and {item["class"] for item in thumbnails} == {"a", "b"}
    first = thumbnails[0]
    pixels = base64.b64decode(first["pixels"])
    assert len(pixels) == first["height"] * first["width"] * first["channels"]
    assert (first["name"], tuple(pixels[:3])) == ("000.png", (0, 0, 99))
    assert seen["dataset"]["num_train"] == 24 and seen["dataset"]["name"] == "own"
    counts = seen["dataset"]["models"]
    assert counts["linear"]["standard"] == 3 * 16 * 20 * 2 + 2 and "gpt" not in counts
    needs = seen["dataset"]["memory"]
    assert needs.keys() == counts.keys() and needs["linear"].keys() == counts["linear"].keys()
    # Saved are the image, and the loss's output of two classes and its target.
    assert needs["linear"]["standard"]["activation_bytes_per_sample"] == 4 * 3 * 16 * 20 + 4 * 2 + 8
    assert seen["is_prepared"] and own(path).fingerprint == seen["fingerprint"]


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


def test_table_is_described_by_columns_and_rows(tmp_path: Path) -> None:
    rows = [f"{i},{i * 7 % 50},{'ab'[i % 2] if i else ''},{i * 0.5}" for i in range(50)]
    seen = inspect(write(tmp_path / "t.csv", "row,x,kind,price", *rows))
    assert [(column["name"], column["type"]) for column in seen["columns"]] == [
        ("row", "row index"),
        ("x", "number"),
        ("kind", "category"),
        ("price", "number"),
    ]
    assert (seen["columns"][2]["num_distinct"], seen["columns"][2]["num_missing"]) == (2, 1)
    assert seen["label_column"] == "price" and seen["task"] == "tabular_regression"
    preview = seen["preview"]
    assert preview["header"] == ["row", "x", "kind", "price"] and preview["rows"][1] == ["1", "7", "b", "0.5"]
    assert len(preview["rows"]) == 8
    target = preview["target"]
    assert (target["min"], target["median"], target["max"]) == (0, 12.25, 24.5) and sum(
        target["histogram"]
    ) == 50
    assert set(seen["dataset"]["models"]) >= {"linear", "tabular_mlp"}


def test_text_is_described_by_its_beginning(tmp_path: Path) -> None:
    seen = inspect(write(tmp_path / "t.txt", *["<script>alert(1)</script>"] * 100))
    preview = seen["preview"]
    assert preview["text"].startswith("<script>") and len(preview["text"]) == 400
    assert (preview["num_characters"], preview["num_distinct"]) == (
        2600,
        len(set("<script>alert(1)</script>\n")),
    )


def test_faults_are_told_and_nothing_is_prepared(tmp_path: Path, own_cache: Path) -> None:  # noqa: F811
    path = make_images(tmp_path / "d", {"a": 3, "b": 3, "c": 1})
    seen = inspect(path)
    assert not seen["ok"] and seen["dataset"] is None and seen["num_problems"] == 2
    fatal = [problem for problem in seen["problems"] if problem["is_fatal"]]
    assert [(problem["where"], problem["line"]) for problem in fatal] == [("c", None)]
    assert seen["preview"]["class_counts"] == {"a": 3, "b": 3, "c": 1}, "what is right is shown all the same"
    assert list(own_cache.iterdir()) == []


def test_nothing_at_the_path_is_an_answer_too(tmp_path: Path) -> None:
    seen = inspect(tmp_path / "nowhere")
    assert not seen["ok"] and "nothing at this path" in seen["problems"][0]["message"]
    assert set(seen) >= {"kind", "task", "columns", "label_column", "preview", "dataset", "fingerprint"}


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
