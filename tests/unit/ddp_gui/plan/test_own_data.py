"""Tests of the inspection of custom data: caching, messages, and escaping of HTML."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.background.torch_template import TorchTemplate
from ddp_gui.plan import own_data
from ddp_gui.plan.own_data import Inspection, OwnDataInspector
from ddp_gui.train import own_data as own_data_module
from trainers.contract import config as config_module
from trainers.contract.config import ConfigError

EVIL = "<img src=x onerror=alert(1)>"


def inspection_of(**values: Any) -> Inspection:
    nothing: dict[str, Any] = {
        "ok": True, "kind": "table", "task": "tabular_classification", "problems": (), "num_problems": 0,
        "columns": (), "label_column": None, "preview": {}, "dataset": None, "counts": {},
    }  # fmt: skip
    return Inspection(**{**nothing, **values})


def problem(line: int | None = 3, **values: Any) -> dict[str, Any]:
    about = {"where": "t.csv", "line": line, "message": "It is empty.", "hint": "Fill it.", "is_fatal": True}
    return about | values


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []

    def ask(config: config_module.Config, template: TorchTemplate) -> Inspection:
        paths.append(config.data_path)
        return inspection_of()

    monkeypatch.setattr(own_data, "_inspect", ask)
    return paths


def inspect_now(own: OwnDataInspector, config: config_module.Config, *, anew: bool = False) -> Inspection:
    return asyncio.run(own.inspect(config, ignore_cache=anew))


def test_data_is_looked_at_again_when_it_changed_or_on_demand(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "cats").mkdir()
    own, config = OwnDataInspector(), config_module.parse({"dataset": "own", "data_path": str(tmp_path)})
    assert own.find_cached(config) is None
    first = inspect_now(own, config)
    assert inspect_now(own, config) is first and own.find_cached(config) is first
    assert len(asked) == 1
    (tmp_path / "cats" / "1.png").write_bytes(b"x")
    assert own.find_cached(config) is None, "a picture came into a class folder"
    inspect_now(own, config)
    inspect_now(own, config, anew=True)
    assert len(asked) == 3
    other = config_module.parse({"dataset": "own", "data_path": str(tmp_path), "label_column": "kind"})
    assert own.find_cached(other) is None, "asked for another label"
    with pytest.raises(ConfigError, match="data_path is ''; allowed: the path of a folder or zip"):
        inspect_now(own, config_module.parse({"dataset": "own"}))
    assert len(asked) == 3


def test_faults_are_told_with_their_lines_and_no_more_than_can_be_read(catalogue: Any) -> None:
    own, config = OwnDataInspector(), config_module.parse({"dataset": "own", "data_path": "t.csv"})
    with pytest.raises(ConfigError, match="press Inspect"):
        own.extend(catalogue, config, None)
    faults = (*(problem(line) for line in range(1, 9)), problem(99, is_fatal=False))
    with pytest.raises(ConfigError) as refused:
        own.extend(catalogue, config, inspection_of(ok=False, problems=faults))
    said = str(refused.value)
    assert "t.csv, line 1: It is empty. Fill it." in said and "line 5" in said and "line 6" not in said
    assert "And 3 more" in said and "line 99" not in said and ".." not in said


def test_everything_from_a_file_is_escaped() -> None:
    look = inspection_of(
        kind=EVIL,
        problems=(problem(where=EVIL, message=EVIL, hint=EVIL),),
        num_problems=1,
        preview={
            "header": [EVIL],
            "rows": [[EVIL]],
            "class_counts": {EVIL: 3},
            "text": EVIL,
            "thumbnails": [
                {"name": EVIL, "class": EVIL, "height": 1, "width": 1, "channels": 1,
                 "pixels": base64.b64encode(b"\x07").decode()}
            ],
        },
    )  # fmt: skip
    said = own_data_module.own_data(look)
    assert "<img src=x" not in said
    assert said.count("&lt;img src=x") >= 6
    assert 'src="data:image/png;base64,' in said


@pytest.mark.parametrize(
    ("preview", "said"),
    [
        ({"shape": [3, 48, 64], "num_images": 9}, "Every image becomes 64 × 48 pixels, in colour."),
        ({"num_rows": 1200}, "1,200 rows; to be predicted: <b><bdi>&lt;price&gt;</bdi></b>."),
        (
            {"num_rows": 2, "target": {"min": 1.5, "median": 2.0, "max": 1234567.0}},
            "Its values range from 1.5 to 1.235e+06, with a median of 2.",
        ),
        (
            {"num_words": {"shortest": 3, "median": 24, "longest": 2100}},
            "Texts of 3 to 2,100 words, half of them at most 24.",
        ),
    ],
)
def test_preview_says_how_many_and_how_long(preview: dict[str, Any], said: str) -> None:
    assert said in own_data_module.own_data(inspection_of(preview=preview, label_column="<price>"))
