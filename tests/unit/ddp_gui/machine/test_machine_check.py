"""Tests of the page's side of the machine check, with a fake check program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ddp_gui.machine import machine_check
from ddp_gui.machine.machine_check import MachineChecks
from tests.harness import ANSWER_TIMEOUT_S, wait_until
from trainers.contract import check_files
from trainers.contract.check_files import JOB_LIMIT_S, CheckFiles, longest_check_s

Start = Callable[[str], MachineChecks]


@pytest.fixture
def checks_of(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that creates the checks of one runs directory with the given fake behaviour."""
    made: list[MachineChecks] = []

    def make(what: str) -> MachineChecks:
        made.append(MachineChecks(tmp_path / "runs", ("-m", "tests.unit.fake_check_program", what)))
        return made[-1]

    (tmp_path / "runs").mkdir()
    yield make
    for checks in made:
        checks.close()
    assert not [child for child in psutil.Process().children(recursive=True) if is_fake(child)]


def is_fake(process: psutil.Process) -> bool:
    try:
        return "tests.unit.fake_check_program" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_a_check_is_followed_to_its_end_and_kept(checks_of: Start, tmp_path: Path) -> None:
    checks = checks_of("ends")
    assert checks.newest_id() is None
    check = checks.start()
    assert check.to_json()["state"] == "running"
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = checks.find(check.check_id)
    assert (found["state"], found["error"]) == ("done", None)
    assert [finding["state"] for finding in found["findings"]] == ["passed", "failed", "skipped"]
    assert checks.report(check.check_id).read_text() == "the file of the fake\n"

    later = MachineChecks(tmp_path / "runs")
    assert later.newest_id() == check.check_id, "a page that starts again shows the last one"
    assert later.find(check.check_id)["findings"] == found["findings"]
    assert later.cancel(check.check_id)["state"] == "done", "what has ended stays as it is"


def test_one_check_at_a_time_and_a_cancel_answers_at_once_and_ends_it(checks_of: Start) -> None:
    checks = checks_of("waits")
    check = checks.start()
    wait_until("its first state", lambda: checks.find(check.check_id)["now"], ANSWER_TIMEOUT_S)
    assert checks.newest_id() == check.check_id
    with pytest.raises(ValueError, match="already being checked"):
        checks.start()
    said = checks.cancel(check.check_id)
    assert (said["state"], said["is_being_cancelled"]) == ("running", True)
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = checks.find(check.check_id)
    assert (found["state"], found["is_being_cancelled"]) == ("cancelled", False)
    assert checks.start().check_id != check.check_id, "the next one can start at once"


def test_one_that_does_not_hear_is_ended(checks_of: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_check, "CANCEL_S", 0.3)
    checks = checks_of("deaf")
    check = checks.start()
    wait_until("its first state", lambda: checks.find(check.check_id)["now"], ANSWER_TIMEOUT_S)
    assert checks.cancel(check.check_id)["state"] == "running", "nobody waits for it"
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = checks.find(check.check_id)
    assert (found["state"], found["now"], found["error"]) == ("cancelled", None, None)


def test_the_time_goes_on_within_a_job(checks_of: Start) -> None:
    """The fake reports once that it took 3 s, and nothing more."""
    checks = checks_of("waits")
    check = checks.start()
    wait_until("its first state", lambda: checks.find(check.check_id)["now"], ANSWER_TIMEOUT_S)
    check.started -= 100.0
    first = checks.find(check.check_id)["took_s"]
    assert first > 100.0
    wait_until("time", lambda: checks.find(check.check_id)["took_s"] > first, ANSWER_TIMEOUT_S)


def test_it_has_ended_when_nothing_of_it_is_left_whatever_it_says(checks_of: Start, tmp_path: Path) -> None:
    checks = checks_of("lingers")
    check = checks.start(gpus=["GPU-0"])
    wait_until("its last words", CheckFiles(tmp_path / "runs").read, ANSWER_TIMEOUT_S)
    for _ in range(3):
        assert checks.find(check.check_id)["state"] == "running"
        time.sleep(machine_check.POLL_S)  # the reader polls in between
    checks.cancel(check.check_id)
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    assert checks.find(check.check_id)["state"] == "done"


def test_a_check_that_says_no_state_has_failed_and_nothing_of_it_is_left(
    checks_of: Start, caplog: pytest.LogCaptureFixture
) -> None:
    checks = checks_of("babbles")
    check = checks.start()
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = checks.find(check.check_id)
    assert found["state"] == "failed" and "an error of the page itself (JSONDecodeError)" in found["error"]
    assert "could not be followed" in caplog.text
    assert not [child for child in psutil.Process().children(recursive=True) if is_fake(child)]


# The queue and the check


def test_a_check_leaves_granted_gpus_alone_and_has_the_others_until_it_ends(checks_of: Start) -> None:
    checks = checks_of("waits_on_gpus")
    assert checks.gpus() == frozenset() and checks.processes() == {}
    check = checks.start(gpus=["GPU-2", "GPU-3"], except_gpus=["GPU-0", "GPU-1"])
    assert checks.gpus() == {"GPU-2", "GPU-3"}, "also before it has said anything"
    wait_until("its first state", lambda: checks.find(check.check_id)["now"], ANSWER_TIMEOUT_S)
    assert checks.find(check.check_id)["except_gpus"] == "GPU-0,GPU-1"
    assert checks.gpus() == {"GPU-2", "GPU-3"}
    found = checks.processes()
    fakes = [child for child in psutil.Process().children(recursive=True) if is_fake(child)]
    assert fakes and all(found[fake.pid] == fake.create_time() for fake in fakes)
    checks.cancel(check.check_id)
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    assert checks.gpus() == frozenset() and checks.processes() == {}


def test_a_check_that_trains_on_the_cpu_has_no_gpu(checks_of: Start) -> None:
    checks = checks_of("waits")
    check = checks.start(gpus=["GPU-0"])
    assert checks.gpus() == {"GPU-0"}
    wait_until("its first state", lambda: checks.find(check.check_id)["now"], ANSWER_TIMEOUT_S)
    assert checks.gpus() == frozenset()


def test_one_that_stands_still_is_ended_after_its_time(
    checks_of: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_check, "LIMIT_S", 0.3)
    check = checks_of("waits").start()
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = check.to_json()
    assert found["state"] == "failed"
    assert "was not finished after" in found["error"]


def test_a_check_has_the_time_in_which_each_of_its_jobs_may_hang() -> None:
    assert longest_check_s(JOB_LIMIT_S) <= machine_check.LIMIT_S
    assert machine_check.CANCEL_S >= check_files.CANCEL_S


def test_one_that_cannot_begin_says_why(checks_of: Start) -> None:
    check = checks_of("fails").start()
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = check.to_json()
    assert (found["state"], found["error"]) == ("failed", "This machine cannot be checked: said the fake")


@pytest.mark.parametrize("check_id", ["x", "0" * 12, None, 3, ["a"]])
def test_an_unknown_check_is_refused(checks_of: Start, check_id: object) -> None:
    checks = checks_of("ends")
    for ask in (checks.find, checks.cancel):
        with pytest.raises(ValueError, match="check_id is"):
            ask(check_id)
    with pytest.raises(ValueError, match="check"):
        checks.report(str(check_id))
