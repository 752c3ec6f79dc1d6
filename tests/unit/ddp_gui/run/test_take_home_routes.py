"""Downloads of a packed model, and messages for missing parts; the packing is in tests/integration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.run import take_home
from ddp_gui.run.take_home import Copies, Copy
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of

ABOUT: dict[str, Any] = {"input": {"kind": "image"}, "output": {"class_names": ["0", "1"]}}


@pytest.fixture
def copies(tmp_path: Path, catalogue) -> Copies:  # noqa: F811
    made = Copies(store_of(tmp_path / "runs", catalogue))
    made._folder = tmp_path / "made"
    made._folder.mkdir()
    return made


def made_page(copies: Copies, tmp_path: Path, **facts: Any) -> tuple[Copy, dict[str, Any]]:
    """Create try.html of a model of a few bytes; return its copy and the facts of its card."""
    run = make_run(tmp_path / "runs")
    copy = Copy("a1", run.run_id, "", step=10, state="done")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"onnx")
    known = {"step": 10, "about": ABOUT, "onnx_problem": None, "files": {}} | facts
    copies._make_page(copies.store.view(run.run_id), folder, copy, known)
    copy.path = folder / "model.onnx"
    copies._copies[copy.take_home_id] = copy
    assert (folder / "try.html").exists() == (copy.page_problem is None)
    return copy, known


def test_the_zip_and_its_page_are_downloads(copies: Copies, tmp_path: Path) -> None:
    copy, facts = made_page(copies, tmp_path)
    app = FastAPI()
    app.include_router(take_home.make_router(copies))
    asking, place = TestClient(app), f"/live/runs/{copy.run_id}/take_home/{copy.take_home_id}"
    assert asking.get(place).content == b"onnx"
    page = asking.get(f"{place}/try.html")
    assert b"<title>" in page.content and len(page.content) == facts["files"]["try.html"]["size_bytes"]
    name = f"{copy.run_id}-step-10-model-try.html"
    assert page.headers["content-disposition"] == f'attachment; filename="{name}"'
    copy.state = "running"
    assert asking.get(place).status_code == asking.get(f"{place}/try.html").status_code == 404


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"onnx_problem": "onnx is not installed"}, "it needs model.onnx"),
        ({"about": {"input": {"tokenizer": {"kind": "pretrained"}}}}, "does not run in a browser"),
    ],
)
def test_a_model_without_a_page_says_why(
    copies: Copies, tmp_path: Path, facts: dict[str, Any], words: str
) -> None:
    copy, known = made_page(copies, tmp_path, **facts)
    assert words in str(copy.page_problem) and copy.page_path is None and known["files"] == {}
    app = FastAPI()
    app.include_router(take_home.make_router(copies))
    answer = TestClient(app).get(f"/live/runs/{copy.run_id}/take_home/{copy.take_home_id}/try.html")
    assert answer.status_code == 404 and words in answer.json()["detail"]
    assert "path" not in copy.to_json() and copy.to_json()["page_problem"] == copy.page_problem
