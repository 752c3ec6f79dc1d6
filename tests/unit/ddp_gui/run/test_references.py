"""Reference lines come from the plan immediately; a linear model is fitted once, never during a short run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_gui.events.run_view import RunView
from ddp_gui.run import references
from ddp_gui.run.references import References
from tests.unit.ddp_gui.events.test_series import evaluation, step
from trainers.contract import config, rundir
from trainers.contract.rundir import RunDirectory, Status
from trainers.files.json_files import write_json_atomically

TRIVIAL = {"predictor": "most_frequent_class", "answer": "setosa", "metric": "accuracy", "value": 0.3333}
TRIVIAL |= {"standard_error": 0.0861, "loss": 1.0986, "inputs_differ": True}
ANSWER = {
    "num_train": 120,
    "num_validation": 30,
    "references": [{"label": "logistic regression", "metrics": {"accuracy": 0.9667}}],
}
ALWAYS = {"label": "always the most frequent class", "metric": "accuracy", "value": 0.3333}
FITTED = {"label": "logistic regression, same split", "metric": "accuracy", "value": 0.9667}


class Process:
    """Fake of the fitting process: counts its starts, and prints an answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def __call__(self, module: str, asked: Any) -> Iterator[bytes]:
        assert module == "trainers.plugins.references"
        self.asked.append(asked)
        yield json.dumps(self.answer).encode()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "iris-linear-1")
    rundir.make(made, config.parse({"dataset": "iris", "model": "linear"}))
    return made


def view_of(run: RunDirectory, *, state: str = "finished", seconds: float = 10.0) -> RunView:
    plan = {"seq": 0, "time_unix_s": 1000.0, "kind": "plan", "num_train": 120, "num_validation": 30}
    plan |= {"num_steps": 20, "trivial": TRIVIAL}
    view = RunView(run, 20)
    newest = evaluation(20, 2, accuracy=0.9) | {"time_unix_s": 1000.0 + seconds}
    view.series.feed([plan, step(1, 1, loss=1.0) | {"time_unix_s": 1000.0}, newest])
    view.status = lambda: Status(state=state)
    return view


def fitted(monkeypatch: pytest.MonkeyPatch, answer: Any = ANSWER) -> Process:
    """Run the fit synchronously with a fake process."""
    process = Process(answer)
    monkeypatch.setattr(references.workers, "module_output", process)
    monkeypatch.setattr(references.FITTING, "submit", lambda call: call())
    return process


def test_it_is_fitted_once_and_kept_in_the_run(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    process = fitted(monkeypatch)
    shown = References()
    assert shown.of_run(view_of(run)) == {"lines": [ALWAYS], "is_complete": False}
    for _ in range(2):
        assert shown.of_run(view_of(run)) == {"lines": [ALWAYS, FITTED], "is_complete": True}
    assert len(process.asked) == 1 and process.asked[0]["dataset"] == "iris"
    assert References().of_run(view_of(run))["lines"] == [ALWAYS, FITTED], "after a restart of the page"


def test_data_that_has_changed_gives_no_line_and_is_not_tried_again(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = fitted(monkeypatch, ANSWER | {"num_train": 121})
    shown = References()
    for _ in range(3):
        found = shown.of_run(view_of(run))
    assert found == {"lines": [ALWAYS], "is_complete": True} and len(process.asked) == 1
    assert "the data has changed" in capsys.readouterr().out
    assert not (run.path / references.FILE).exists()


@pytest.mark.parametrize(
    "held",
    [
        [],
        {"references": [{"label": "x" * 200, "metrics": {}}]},
        {"references": [{"label": "a", "metrics": {"accuracy": "high"}}]},
        {"references": [{"label": "a"}]},
    ],
)
def test_a_copied_file_is_not_shown(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, held: Any) -> None:
    fitted(monkeypatch)
    write_json_atomically(run.path / references.FILE, held)
    assert References().of_run(view_of(run)) == {"lines": [ALWAYS], "is_complete": False}
