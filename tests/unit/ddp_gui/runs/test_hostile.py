"""Exports of a run whose texts are all hostile, opened as by the user who downloads them."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.run import downloads
from ddp_gui.runs import exports
from tests.hostile_words import ACTING, NAME, SEEN_NOWHERE, TURNED
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract import events
from trainers.contract.rundir import RunDirectory

HEADER = re.compile(r'attachment; filename="[A-Za-z0-9_.-]{1,200}"')
FORMULA = "=cmd|'/c calc'!A0"
ENDS_HEADER = 'a"\r\nSet-Cookie: a=b\r\n\r\n<html>'
METRICS = {FORMULA: 0.25, f'"\n,{ACTING}': 0.5, "\ud800": 1.0}


@pytest.fixture
def hostile(tmp_path: Path) -> RunDirectory:
    """Return a run as an attacker may have written it."""
    run = make_run(tmp_path / "runs")
    config = json.loads(run.config.read_text())
    run.config.write_text(
        json.dumps(config | {"name": f"{ENDS_HEADER}{TURNED}\x1b[31m{NAME}"[:200], "label_column": FORMULA})
    )
    (run.path / "notes.json").write_text(json.dumps({"tags": [FORMULA], "note": f"{FORMULA}\n{ENDS_HEADER}"}))
    line = {"seq": events.last(run.events)["seq"] + 1, "time_unix_s": 300.0, "kind": "eval"}
    with run.events.open("a") as file:
        file.write(json.dumps(line | {"step": 11, "epoch": 0, "loss": 1.0, "metrics": METRICS}) + "\n")
    return run


@pytest.fixture
def asking(hostile: RunDirectory, catalogue: Catalogue) -> TestClient:
    app = FastAPI()
    store = store_of(hostile.path.parent, catalogue)
    app.include_router(exports.make_router(store))
    app.include_router(downloads.make_download_router(store))
    return TestClient(app)


def table_of(content: bytes) -> list[list[str]]:
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert len({len(row) for row in rows}) == 1, "no word has ended its cell"
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(("=", "+", "@", "\t", "\r")), cell
        assert SEEN_NOWHERE.search(cell) is None, ascii(cell)
    return rows


def members_of(content: bytes, folder: Path) -> dict[str, bytes]:
    """Unpack a zip with the standard function; return the files in the folder by their full names."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)
        names = archive.namelist()
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert sorted(found) == sorted(names), "each lies where its name says"
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./-]*", name) and ".." not in name for name in names)
    return found


def test_tables_hold_words_as_text(hostile: RunDirectory, asking: TestClient, tmp_path: Path) -> None:
    answer = asking.get(f"/live/runs/export.zip?ids={hostile.run_id}")
    assert HEADER.fullmatch(answer.headers["content-disposition"]) and "set-cookie" not in answer.headers
    found = members_of(answer.content, tmp_path / "unpacked")
    assert set(found) == {"runs.csv", f"{hostile.run_id}.csv"}
    overview = dict(zip(*table_of(found["runs.csv"]), strict=True))
    assert overview["tags"] == f"'{FORMULA}" and overview["note"].startswith(f"'{FORMULA}\n")
    assert overview["name"].startswith('a"') and "Set-Cookie" in overview["name"]
    head, *rows = table_of(found[f"{hostile.run_id}.csv"])
    assert rows[-1][-3:] == ["0.25", "0.5", "1.0"] and head[-3] == f"validation_{FORMULA}"


@pytest.mark.parametrize("kind", ["json", "tfevents"])
def test_a_run_and_its_zip_agree(
    hostile: RunDirectory, asking: TestClient, tmp_path: Path, kind: str
) -> None:
    alone = asking.get(f"/live/runs/{hostile.run_id}/export.{kind}")
    packed = asking.get(f"/live/runs/export.zip?ids={hostile.run_id}&kind={kind}")
    for answer in (alone, packed):
        assert HEADER.fullmatch(answer.headers["content-disposition"]) and "set-cookie" not in answer.headers
    (content,) = members_of(packed.content, tmp_path / "unpacked").values()
    assert content == alone.content
    if kind == "json":
        read = json.loads(content)
        assert read["note"] == f"{FORMULA}\n{ENDS_HEADER}" and read["config"]["label_column"] == FORMULA
        assert read["evaluations"][f"metrics.{FORMULA}"][-1] == 0.25


@pytest.mark.parametrize("time_unix_s", ["1e308", "-5e9", "1e999", "NaN"])
def test_an_event_file_has_a_usable_name(hostile: RunDirectory, asking: TestClient, time_unix_s: str) -> None:
    first, *others = hostile.events.read_text().splitlines(keepends=True)
    hostile.events.write_text(
        "".join([re.sub(r'("time_unix_s": ?)[^,]+', rf"\g<1>{time_unix_s}", first), *others])
    )
    assert f'"time_unix_s":{time_unix_s}' in hostile.events.read_text().replace(" ", "")
    named = asking.get(f"/live/runs/{hostile.run_id}/export.tfevents").headers["content-disposition"]
    assert re.search(rf'"events\.out\.tfevents\.\d{{1,11}}\.{hostile.run_id}"', named), named


def test_a_checkpoint_s_zip_has_safe_names(hostile: RunDirectory, asking: TestClient, tmp_path: Path) -> None:
    step = hostile.checkpoints / "step_7"
    (step / "model").mkdir(parents=True)
    for name in ("manifest.json", "model/.metadata", "model/__0_0.distcp"):
        (step / name).write_text('{"files": {}, "saved_unix_s": 1}')
    for name in (
        "..\\..\\evil",
        "C:evil",
        "a\nb",
        "\x1b]0;x\x07",
        "\u202egnp.exe",
        b"\xff\xfe".decode(errors="surrogateescape"),
    ):
        (step / name).write_text("evil")
    answer = asking.get(f"/live/runs/{hostile.run_id}/checkpoints/7/download")
    assert HEADER.fullmatch(answer.headers["content-disposition"])
    found = members_of(answer.content, tmp_path / "unpacked")
    folder = f"{hostile.run_id}-step-7"
    assert set(found) == {
        f"{folder}/{name}" for name in ("manifest.json", "model/.metadata", "model/__0_0.distcp")
    }
