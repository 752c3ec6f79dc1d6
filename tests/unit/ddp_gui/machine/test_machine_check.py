"""Tests of the page's side of the machine check, with a fake check program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ddp_gui.machine.machine_check import MachineChecks
from tests.harness import ANSWER_TIMEOUT_S, wait_until

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
    with pytest.raises(ValueError, match="a check of this machine is already running"):
        checks.start()
    said = checks.cancel(check.check_id)
    assert (said["state"], said["is_being_cancelled"]) == ("running", True)
    assert check.has_ended.wait(ANSWER_TIMEOUT_S)
    found = checks.find(check.check_id)
    assert (found["state"], found["is_being_cancelled"]) == ("cancelled", False)
    assert checks.start().check_id != check.check_id, "the next one can start at once"


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


@pytest.mark.parametrize("check_id", ["x", "0" * 12, None, 3, ["a"]])
def test_an_unknown_check_is_refused(checks_of: Start, check_id: object) -> None:
    checks = checks_of("ends")
    for ask in (checks.find, checks.cancel):
        with pytest.raises(ValueError, match="check_id is"):
            ask(check_id)
    with pytest.raises(ValueError, match="check"):
        checks.report(str(check_id))
