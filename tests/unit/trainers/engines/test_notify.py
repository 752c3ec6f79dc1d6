"""Tests of notifications: their text, and failures that do no harm and reveal no address."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from tests.harness import all_events
from trainers.contract.config import Config
from trainers.contract.events import EventFile
from trainers.contract.rundir import RunDirectory
from trainers.engines import liveness
from trainers.engines.local import notify
from trainers.engines.local.supervisor import Supervisor
from trainers.files import json_files

SECRET = "s3cret-token"
ADDRESS = f"json://127.0.0.1:9/{SECRET}"


@pytest.fixture
def run(run: RunDirectory) -> RunDirectory:
    """Return a run directory as the page creates it."""
    json_files.write_json_atomically(run.config, Config(name="my run").to_json())
    run.logs.mkdir()
    return run


def evaluations(run: RunDirectory, *found: tuple[int, float], metric: str = "accuracy") -> None:
    file = EventFile(run.events)
    about = {"epoch": 0, "loss": 1.0, "confusion": None}
    file.append([(1.0, "eval", {"step": step, **about, "metrics": {metric: n}}) for step, n in found])
    file.close()


def test_sentence_has_name_state_reason_and_the_best_evaluation(run: RunDirectory) -> None:
    assert notify.sentence(run, "failed", "Rank 1 was killed.") == "my run failed: Rank 1 was killed."
    evaluations(run, (10, 0.5), (20, 0.91234), (30, 0.8))
    said = notify.sentence(run, "finished", "All 30 steps done.")
    assert said == "my run finished: All 30 steps done. Best accuracy: 0.9123 at step 20."
    evaluations(run, (20, 0.7))  # resumed from step 10: later evaluations of the first start do not count
    assert notify.sentence(run, "finished", "Done.").endswith("Best accuracy: 0.7 at step 20.")


def test_less_perplexity_is_better_and_what_is_no_number_is_left_out(run: RunDirectory) -> None:
    evaluations(run, (10, 9.5), (20, 8.25), (30, float("nan")), metric="perplexity")
    run.config.unlink()
    said = notify.sentence(run, "finished", "Done.")
    assert said == "run-1 finished: Done. Best perplexity: 8.25 at step 20."


def finish(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, code: str) -> list[dict[str, Any]]:
    """Finish a run whose notifications are sent by this code; return its events."""
    monkeypatch.setenv(notify.VARIABLE, ADDRESS)
    started = subprocess.run

    def run_code(command: list[str], **arguments: Any) -> Any:
        assert SECRET not in " ".join(command), "anybody may see the arguments of a process"
        return started([sys.executable, "-c", code], **arguments)

    monkeypatch.setattr(subprocess, "run", run_code)
    subject = Supervisor(run, None)
    file = EventFile(run.events)
    file.append([(1.0, "state", {"state": "finished", "reason": "All 5 steps done."})])
    file.close()
    subject._follow_events()
    subject._conclude(0)
    assert liveness.read_status(run).state == "finished" and liveness.read_status(run).error is None
    said = all_events(run)
    assert [event["state"] for event in said if event["kind"] == "state"] == ["finished"]
    everything = "".join(path.read_text() for path in run.path.rglob("*") if path.is_file())
    assert SECRET not in everything
    return [event for event in said if event["kind"] == "warning"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"import sys; sys.exit({notify.NOT_INSTALLED})", "requirements-notify.txt"),
        (f"import sys; sys.exit({notify.INVALID_ADDRESS})", "Apprise does not recognise an address"),
        (f"import sys; sys.exit({notify.REJECTED})", "did not accept the message"),
        (f"raise RuntimeError('{ADDRESS}')", "did not accept the message"),
    ],
)
def test_what_goes_wrong_is_one_warning_in_plain_words(
    run: RunDirectory, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (warning,) = finish(run, monkeypatch, code)
    assert warning["code"] == "notify_failed"
    said = f"{warning['message']} {warning['hint']}"
    assert words in said and "not affected" in said, said


def test_a_service_that_hangs_is_given_up(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "TIME_LIMIT_S", 0.5)
    began = time.monotonic()
    (warning,) = finish(run, monkeypatch, "import time; time.sleep(600)")
    assert time.monotonic() - began < 60, "given up, not waited for"
    assert "longer than" in warning["message"]
    assert notify.TIME_LIMIT_S < 10
