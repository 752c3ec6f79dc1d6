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


def test_every_span_of_the_trace_is_as_the_format_wants_it(golden: dict[str, Any]) -> None:
    trace = recordings_module.trace_of(golden, "run-1")
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "M"}
    for event in spans:
        assert event.keys() >= {"name", "cat", "ts", "dur", "pid", "tid", "args"}
        assert event["ts"] >= 0 and event["dur"] >= 0
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {"rank 0 on pc1", "rank 1 on pc1"}
    for rank in (0, 1):
        mine = [event["name"] for event in spans if event["pid"] == rank]
        assert mine.count("bucket 0") == golden["num_steps"] == mine.count("forward") == mine.count("add up")
    bucket = next(event for event in spans if event["name"] == "bucket 0")
    assert bucket["args"]["bytes"] == golden["buckets"][0]["bytes"] and bucket["args"]["parameters"]
    # A part is within the time span of its step, so Perfetto draws it below.
    step = next(event for event in spans if event["name"].startswith("step"))
    forward = next(event for event in spans if event["name"] == "forward" and event["pid"] == step["pid"])
    assert step["ts"] <= forward["ts"] <= forward["ts"] + forward["dur"] <= step["ts"] + step["dur"]


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


def test_newest_comes_first_and_what_is_no_recording_is_left_out(recorded: RunDirectory) -> None:
    for name in ("step_x.json", ".step_9.json.0.tmp", "step_9.json.bak"):
        (recorded.recordings / name).touch()
    (recorded.recordings / "step_3.json").symlink_to(recorded.config)
    newer = recordings.path_of(recorded, 4)
    newer.write_text("{}")
    assert [each.step for each in recordings.list_recordings(recorded)] == [4, STEP]


@pytest.mark.parametrize("kind", ENTRIES)
def test_whatever_lies_in_a_recordings_place_is_an_answer_in_words(
    client: TestClient, recorded: RunDirectory, kind: str
) -> None:
    put(kind, recordings.path_of(recorded, STEP))
    for route in ("", f"/{STEP}", f"/{STEP}/trace.json"):
        answer = client.get(f"/live/runs/{recorded.run_id}/recordings{route}")
        assert answer.status_code in ((200,) if route == "" else (404, 422)), (route, answer.text)
        assert str(recorded.path) not in answer.text


def test_a_run_without_recordings_has_none(tmp_path: Path) -> None:
    assert recordings.list_recordings(make_run(tmp_path / "runs")) == []
