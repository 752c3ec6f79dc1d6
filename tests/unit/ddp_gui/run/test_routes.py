"""What a run's page shows: its summary, recorded steps, logs, code and samples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.events.run_view import RunView
from ddp_gui.run import logs
from ddp_gui.run import recordings as recordings_module
from ddp_gui.run import samples as samples_module
from ddp_gui.run.summary import describe_configuration, summarise
from tests.harness import REPOSITORY
from tests.stray_entries import ENTRIES, put
from tests.unit.ddp_gui.runs.test_runs import make_run, store_of
from trainers.contract import code, config, recordings, rundir
from trainers.contract.events import EventFile
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
def client(recorded: RunDirectory, catalogue) -> TestClient:
    app = FastAPI()
    app.include_router(recordings_module.make_router(store_of(recorded.path.parent, catalogue)))
    return TestClient(app)


def test_routes_of_a_recording(client: TestClient, recorded: RunDirectory, golden: dict[str, Any]) -> None:
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
def test_odd_recordings_are_said_in_words(client: TestClient, recorded: RunDirectory, kind: str) -> None:
    put(kind, recordings.path_of(recorded, STEP))
    for route in ("", f"/{STEP}", f"/{STEP}/trace.json"):
        answer = client.get(f"/live/runs/{recorded.run_id}/recordings{route}")
        assert answer.status_code in ((200,) if route == "" else (404, 422)), (route, answer.text)
        assert str(recorded.path) not in answer.text


def test_a_log_without_end_is_searched_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEARCHED_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("word\n" + "x" * 200 + "\nword again\n")
    found = logs.search(path, "word")
    assert (found["lines"], found["is_whole"]) == (["word again"], False)


def test_stacks_of_the_newest_hang_are_a_log(run: RunDirectory) -> None:
    assert logs.read(logs.newest_stacks(run), -1)["size"] == 0
    run.logs.mkdir()
    for name in ("hang_20261121-174022.txt", "hang_20261121-180000.txt", "hang_20250101-000000.txt"):
        (run.logs / name).write_text(name)
    assert logs.read(logs.newest_stacks(run), -1)["text"] == "hang_20261121-180000.txt"


CONFIG = {"nproc_per_node": 2, "batch_size": 32, "device": "cpu", "num_epochs": 3}


def write_plan(run: RunDirectory, num_train: int, **dealing: Any) -> None:
    fields: dict[str, Any] = {"num_train": num_train, "num_steps": 100}
    file = EventFile(run.events)
    file.append([(100.0, "plan", fields | ({"dealing": dealing} if dealing else {}))])
    file.close()


@pytest.fixture
def samples(tmp_path: Path, catalogue) -> TestClient:
    app = FastAPI()
    app.include_router(samples_module.make_router(store_of(tmp_path, catalogue)))
    return TestClient(app)


@pytest.fixture
def planned(tmp_path: Path) -> RunDirectory:
    return rundir.create(tmp_path, config.parse(CONFIG))


def place(run: RunDirectory, sample: str = "") -> str:
    return f"/live/runs/{run.run_id}/samples{sample}"


def test_with_very_many_samples_there_are_numbers_alone(samples: TestClient, planned: RunDirectory) -> None:
    write_plan(planned, 3_000_000_000)
    said = samples.get(place(planned)).json()
    assert (said["ways"], said["picture"], said["by"]) == ([], None, None)
    assert said["pieces"][0]["num_steps"] == 46_875_000
    assert samples.get(place(planned, "/5")).status_code == 422


@pytest.mark.parametrize("wrong", [{"epoch": 3}, {"epoch": -1}, {"by": "rank"}, {"first": "x"}])
def test_what_cannot_be_is_refused(samples: TestClient, planned: RunDirectory, wrong: dict[str, Any]) -> None:
    write_plan(planned, 1437)
    assert samples.get(place(planned), params=wrong).status_code == 422
    assert samples.get(place(planned, "/1437")).status_code == 422


@pytest.mark.parametrize("field", ["batch_size", "num_accumulated", "num_replicas"])
def test_a_changed_plan_breaks_nothing(samples: TestClient, planned: RunDirectory, field: str) -> None:
    dealing = {"step": 0, "epoch": 0, "samples_in_epoch": 0}
    dealing |= {"batch_size": 32, "num_accumulated": 1, "num_replicas": 2}
    write_plan(planned, 1437, **dealing | {field: 0})
    assert samples.get(place(planned)).status_code == 404
    write_plan(planned, 1437, **dealing | {field: 2**60})
    assert samples.get(place(planned)).status_code in (200, 404)


def run_with(runs_dir: Path, born_s: int, **values: object) -> RunDirectory:
    run = rundir.create(runs_dir, config.parse(values))
    os.utime(run.config, (born_s, born_s))
    return run


def test_a_strategy_that_is_not_installed_is_not_described_as_another(tmp_path: Path, catalogue) -> None:
    run = run_with(tmp_path, 100, strategy="by_hand", **{"by_hand.piece_mb": 2})
    summary = summarise(RunView(run, 1), store_of(tmp_path, catalogue))
    assert summary["strategy_sharing"] == "The strategy by_hand is not installed on this machine."
    assert summary["config"]["by_hand.piece_mb"] == 2
    known = summarise(RunView(run_with(tmp_path, 200), 1), store_of(tmp_path, catalogue))
    assert known["strategy_sharing"].startswith("After every backward pass DDP averages")


def test_scripts_with_equal_settings_and_other_code_are_not_called_equal(tmp_path: Path, catalogue) -> None:
    store, codes = store_of(tmp_path, catalogue), ("x = 1", "x = 2", "x = 2")
    runs = [run_with(tmp_path, 100 + number, script="train.py") for number in range(len(codes))]
    for run, text in zip(runs, codes, strict=True):
        (run.path / code.FOLDER).mkdir()
        (run.path / code.FOLDER / "train.py").write_text(text)
    before = [describe_configuration(run, store)["before"] for run in runs]
    assert before[0] is None and [found["is_other_code"] for found in before[1:]] == [True, False]
    assert [found["changes"] for found in before[1:]] == [[], []]
