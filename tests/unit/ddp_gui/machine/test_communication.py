"""The communication check without processes: numbers, limits and messages."""

from __future__ import annotations

import shlex

import pytest
import torch

from ddp_gui.devices.capacity import Machine
from ddp_gui.machine import communication
from ddp_gui.machine.communication import CommunicationChecks, explain_failure
from tests.unit.fakes import world_of
from trainers.engines.local.torchrun import torchrun_program
from trainers.files.plain_files import REPOSITORY
from trainers.parallel import bandwidth

ON_CPU = Machine(num_gpus=0, num_cores=2)


def test_bus_bandwidth_is_what_nccl_tests_define() -> None:
    # Factors in the nccl-tests table: 2 ranks ×1, 4 ranks ×1.5, 8 ranks ×1.75.
    assert [bandwidth.bus_factor(ranks) for ranks in (2, 4, 8)] == [1.0, 1.5, 1.75]


def test_the_expected_sum_is_the_sum_of_all_ranks_exactly() -> None:
    parts = [bandwidth.numbers_to_add(1_000, world_of(3, rank)) for rank in range(3)]
    total = torch.stack([mine for mine, _ in parts]).sum(dim=0)
    for _, expected in parts:
        assert torch.equal(total, expected)
    assert len(set(total.tolist())) == bandwidth.PATTERN_LENGTH, "an element out of place would show"


def test_the_shown_command_works_in_any_terminal() -> None:
    folder, torchrun = shlex.quote(str(REPOSITORY)), shlex.join(torchrun_program())
    shown = communication.shown_command("N", ON_CPU)
    assert shown.startswith(f"cd {folder} && env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {torchrun} ")


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
    assert explain_failure([], "", 2, None).endswith("2: it wrote nothing")
    assert len(explain_failure([{"error": "x" * 9_000, "rank": 0}], "", 1, None)) < 400
