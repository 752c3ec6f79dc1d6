"""The machine check, with a fake check program, and the communication check without processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddp_gui.devices.capacity import Machine
from ddp_gui.machine.communication import CommunicationChecks, explain_failure
from ddp_gui.machine.machine_check import MachineChecks
from tests.harness import ANSWER_TIMEOUT_S, wait_until
from trainers.parallel import bandwidth


@pytest.fixture
def checks(tmp_path: Path) -> Iterator[MachineChecks]:
    """Yield the checks of a runs directory, whose check program is a fake."""
    (tmp_path / "runs").mkdir()
    made = MachineChecks(tmp_path / "runs", ("-m", "tests.unit.fake_check_program"))
    yield made
    made.close()
    assert not [child for child in psutil.Process().children(recursive=True) if is_fake(child)]


def is_fake(process: psutil.Process) -> bool:
    try:
        return "tests.unit.fake_check_program" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_a_check_leaves_granted_gpus_alone_and_has_the_others_until_it_ends(checks: MachineChecks) -> None:
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


@pytest.mark.parametrize("check_id", ["x", "0" * 12, None, ["a"]])
def test_an_unknown_check_is_refused(checks: MachineChecks, check_id: object) -> None:
    for ask in (checks.find, checks.cancel):
        with pytest.raises(ValueError, match="check_id is"):
            ask(check_id)
    with pytest.raises(ValueError, match="check"):
        checks.report(str(check_id))


ON_CPU = Machine(num_gpus=0, num_cores=2)


def test_bus_bandwidth_is_what_nccl_tests_define() -> None:
    # Factors in the nccl-tests table: 2 ranks ×1, 4 ranks ×1.5, 8 ranks ×1.75.
    assert [bandwidth.bus_factor(ranks) for ranks in (2, 4, 8)] == [1.0, 1.5, 1.75]


@pytest.mark.parametrize("num_ranks", [0, 1, 5, -2, 2.5, "2", None, True, [2]])
def test_ranks_that_cannot_be_had_are_refused(num_ranks: object) -> None:
    checks = CommunicationChecks()
    with pytest.raises(ValueError, match=r"num_ranks is .*allowed: a whole number from 2 to 4"):
        checks.start(num_ranks, ON_CPU)
    assert checks.newest_id is None


def test_every_other_end_is_in_words_too() -> None:
    raised = [{"error": "RuntimeError: NCCL error", "rank": 1}, {"error": "closed", "rank": 0}]
    assert explain_failure(raised, "", 1, None) == "Rank 1 failed: RuntimeError: NCCL error"
    assert "was not finished after 60 s" in explain_failure([], "", -9, 60.0)
    assert "was killed by a signal (SIGTERM)" in explain_failure([], "", -15, None)
    assert explain_failure([], "a\nNo module named torch\n", 1, None).endswith("1: No module named torch")
    assert explain_failure([], "", 2, None).endswith("2: torchrun printed nothing")
    assert len(explain_failure([{"error": "x" * 9_000, "rank": 0}], "", 1, None)) < 400
