"""A model is packed in a separate process into one zip that describes its contents."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ddp_gui.run import take_home
from ddp_gui.run.take_home import Copies, Copy
from tests.harness import wait_until
from tests.unit.ddp_gui.conftest import catalogue  # noqa: F401 - a fixture
from tests.unit.ddp_gui.runs.test_runs import leave_events, store_of
from tests.unit.trained_runs import delete_checkpoint, leave_trained_run
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory

pytestmark = pytest.mark.integration

END_S = 300.0
STEP = 10  # as in the evaluation of `leave_events`


@pytest.fixture
def copies(tmp_path: Path, catalogue) -> Iterator[Copies]:  # noqa: F811
    made = Copies(store_of(tmp_path, catalogue))
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = leave_trained_run(tmp_path, "digits", "linear", steps=(5, STEP))[0]
    leave_events(made)
    return made


@pytest.fixture
def asking(copies: Copies) -> TestClient:
    app = FastAPI()
    app.include_router(take_home.make_router(copies))
    return TestClient(app)


def ended(copy: Copy) -> Copy:
    wait_until("the end of the packing", lambda: copy.state != "running", END_S)
    return copy


def test_a_killed_process_is_a_message_and_the_next_zip_has_everything_with_the_sums_of_its_card(
    copies: Copies, run: RunDirectory, asking: TestClient
) -> None:
    killed, copy = copies.start(run.run_id, 5), copies.start(run.run_id, None)
    place = f"/live/runs/{run.run_id}/take_home/{copy.take_home_id}"
    assert asking.get(place).status_code == 404
    wait_until("its process", lambda: copies._process is not None, END_S)
    psutil.Process(copies._process.pid).kill()
    assert ended(killed).state == "failed"
    assert killed.error is not None and "ended early" in killed.error
    assert asking.get(place.replace(copy.take_home_id, killed.take_home_id)).status_code == 404
    seen = set()
    wait_until("its end", lambda: seen.add(copy.doing) or copy.state != "running", END_S)
    assert (copy.state, copy.error, copy.step) == ("done", None, STEP)
    assert len(seen) > 2
    answer = asking.get(place)
    name = f"{run.run_id}-step-{STEP}-model"
    assert f'filename="{name}.zip"' in answer.headers["content-disposition"]
    assert len(answer.content) == copy.size_bytes
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        files = {path.removeprefix(f"{name}/"): archive.read(path) for path in archive.namelist()}
    wanted = {"weights.safetensors", "model.pt2", "model.json", "predict.py", "example.pgm"}
    wanted |= {"MODEL_CARD.md", "curve.svg"}
    has_onnx = all(importlib.util.find_spec(each) for each in ("onnx", "onnxscript"))
    assert set(files) == wanted | ({"model.onnx", "try.html"} if has_onnx else set())
    page = asking.get(f"{place}/try.html")
    assert page.status_code == (200 if has_onnx else 404)
    assert not has_onnx or page.content == files["try.html"]
    assert (copy.onnx_problem is None) is has_onnx
    card = files["MODEL_CARD.md"].decode()
    for path in files.keys() - {"MODEL_CARD.md", "curve.svg"}:
        assert hashlib.sha256(files[path]).hexdigest() in card, path
    assert "| accuracy | 0.75 (95% interval 0.7028 to 0.7919) |" in card
    assert "CC BY 4.0" in card and "| `batch_size` |" in card and "torch 2." in card
    assert files["curve.svg"].count(b"<polyline") == 2
    assert json.loads(files["model.json"])["input"]["largest"] == 16
    assert asking.get(place.replace(run.run_id, "other-1")).status_code == 404
    copies.close()
    assert copy.path is not None and not copy.path.exists()


def test_a_deleted_and_a_damaged_checkpoint_are_messages(copies: Copies, run: RunDirectory) -> None:
    delete_checkpoint(run, 5)
    with pytest.raises(ValueError, match=r"checkpoint_step is 5; allowed: .*: 10"):
        copies.start(run.run_id, 5)
    (run.checkpoints / "step_10" / "model.safetensors").write_bytes(b"damaged")
    damaged = ended(copies.start(run.run_id, None))
    assert damaged.state == "failed" and "model.safetensors differs from the saved file" in str(damaged.error)


def test_a_run_that_is_broken_on_purpose_gives_nothing_away(copies: Copies, tmp_path: Path) -> None:
    values = {"mistake": "no_set_epoch", "nproc_per_node": 2, "device": "cpu"}
    broken = rundir.create(tmp_path, config.parse(values))
    with pytest.raises(ValueError, match="broken on purpose"):
        copies.start(broken.run_id, None)
