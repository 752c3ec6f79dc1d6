"""A recorded step as a Chrome trace, and its routes; the file is from a real run of two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.run import recordings as recordings_module
from tests.harness import REPOSITORY
from tests.stray_entries import ENTRIES, put
from tests.unit.ddp_gui.plan.test_plan import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract import recordings
from trainers.contract.rundir import RunDirectory

GOLDEN = REPOSITORY / "tests" / "golden" / "recording_digits_mlp.json"
STEP = 9


@pytest.fixture
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def recorded(tmp_path: Path, golden: dict[str, Any]) -> RunDirectory:
    run = make_run(tmp_path / "runs")
    run.recordings.mkdir()
    recordings.path_of(run, STEP).write_text(json.dumps(golden))
    return run


@pytest.fixture
def client(recorded: RunDirectory, catalogue) -> TestClient:  # noqa: F811
    app = FastAPI()
    app.include_router(recordings_module.make_router(store_of(recorded.path.parent, catalogue)))
    return TestClient(app)


def test_routes_list_give_and_convert_a_recording(
    client: TestClient, recorded: RunDirectory, golden: dict[str, Any]
) -> None:
    base = f"/live/runs/{recorded.run_id}/recordings"
    (listed,) = client.get(base).json()["recordings"]
    assert listed["step"] == STEP and listed["size_bytes"] > 1000 and listed["recorded_unix_s"] > 0
    assert client.get(f"{base}/{STEP}").json() == golden
    answer = client.get(f"{base}/{STEP}/trace.json")
    assert answer.json()["traceEvents"]
    assert f'filename="{recorded.run_id}-step-{STEP}.trace.json"' in answer.headers["content-disposition"]
    absent = client.get(f"{base}/10")
    assert absent.status_code == 404 and "no recording that begins with step 10" in absent.json()["detail"]


@pytest.mark.parametrize("kind", ENTRIES)
def test_whatever_lies_in_a_recordings_place_is_an_answer_in_words(
    client: TestClient, recorded: RunDirectory, kind: str
) -> None:
    put(kind, recordings.path_of(recorded, STEP))
    for route in ("", f"/{STEP}", f"/{STEP}/trace.json"):
        answer = client.get(f"/live/runs/{recorded.run_id}/recordings{route}")
        assert answer.status_code in ((200,) if route == "" else (404, 422)), (route, answer.text)
        assert str(recorded.path) not in answer.text
