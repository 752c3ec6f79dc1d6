"""The communication check without processes: numbers, limits and messages."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from ddp_gui.devices.capacity import Machine
from ddp_gui.machine import communication
from ddp_gui.machine.communication import CommunicationChecks, explain_failure
from tests.unit.fakes import world_of
from trainers.engines.local.torchrun import rank_exit_codes, torchrun_program
from trainers.files.json_files import read_json_lines
from trainers.files.plain_files import REPOSITORY
from trainers.parallel import bandwidth

ON_CPU = Machine(num_gpus=0, num_cores=2)
ONE_GPU = Machine(num_gpus=1, num_cores=16)
EIGHT_GPUS = Machine(num_gpus=8, num_cores=64)
SUMMARY = """[0]:
  time      : 2026-11-21_14:00:00
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 123)
"""


def test_bus_bandwidth_is_what_nccl_tests_define() -> None:
    # Factors in the nccl-tests table: 2 ranks ×1, 4 ranks ×1.5, 8 ranks ×1.75.
    assert [bandwidth.bus_factor(ranks) for ranks in (2, 4, 8)] == [1.0, 1.5, 1.75]


def test_sizes_go_from_1_kb_to_64_mb_in_whole_elements() -> None:
    assert bandwidth.SIZES_BYTES[0] == 1_000
    assert 64e6 < bandwidth.SIZES_BYTES[-1] < 67e6
    assert all(size % bandwidth.BYTES_PER_ELEMENT == 0 for size in bandwidth.SIZES_BYTES)


def test_the_expected_sum_is_the_sum_of_all_ranks_exactly() -> None:
    parts = [bandwidth.numbers_to_add(1_000, world_of(3, rank)) for rank in range(3)]
    total = torch.stack([mine for mine, _ in parts]).sum(dim=0)
    for _, expected in parts:
        assert torch.equal(total, expected)
    assert len(set(total.tolist())) == bandwidth.PATTERN_LENGTH, "an element out of place would show"


def test_quick_sizes_are_repeated_more_often_within_limits() -> None:
    assert bandwidth.repetitions_in_time(1e-6, 0.7) == bandwidth.MOST_REPETITIONS
    assert bandwidth.repetitions_in_time(0.064, 0.7) == 10
    assert bandwidth.repetitions_in_time(5.0, 0.7) == bandwidth.FEWEST_REPETITIONS


def test_time_between_two_measured_sizes_is_on_the_line_between_them() -> None:
    lines = [{"size_bytes": size, "time_s": time_s} for size, time_s in ((10, 1.0), (20, 3.0), (40, 3.5))]
    assert communication.time_for(15, lines) == 2.0
    assert communication.time_for(20, lines) == 3.0
    assert communication.time_for(41, lines) is None, "nothing is guessed beyond what was measured"
    assert communication.time_for(15, lines[:1]) is None


@pytest.mark.parametrize(
    ("here", "backend", "most", "command_end"),
    [
        (ON_CPU, "gloo", 4, "check_communication"),
        (ONE_GPU, "gloo", 16, "check_communication --device cpu"),
        (EIGHT_GPUS, "nccl", 8, "check_communication"),
    ],
)
def test_what_a_machine_can_check(here: Machine, backend: str, most: int, command_end: str) -> None:
    assert communication.backend_of(here) == backend
    assert communication.most_ranks(here) == most
    shown = communication.shown_command("N", here)
    torchrun = shlex.join(torchrun_program())
    assert shown.startswith(
        f"cd {shlex.quote(str(REPOSITORY))} && env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {torchrun} "
    )
    assert " --nproc-per-node N -m trainers.check_communication" in shown
    assert shown.endswith(command_end)


@pytest.mark.parametrize("num_ranks", [0, 1, 5, -2, 2.5, "2", None, True, [2]])
def test_ranks_that_cannot_be_had_are_refused(num_ranks: object) -> None:
    checks = CommunicationChecks()
    with pytest.raises(ValueError, match=r"num_ranks is .*allowed is: a whole number from 2 to 4"):
        checks.start(num_ranks, ON_CPU)
    assert checks.newest_id is None


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match="check_id is 'x', but allowed is"):
        CommunicationChecks().find("x")


def test_only_whole_json_objects_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('[Gloo] Rank 0 is connected\n3\n{"size_bytes": 1}\n{"size_bytes": 2}')
    assert read_json_lines(path) == [{"size_bytes": 1}]


def test_torchruns_summary_gives_each_ranks_exit_code() -> None:
    output = SUMMARY.format(rank=0, code=1) + SUMMARY.format(rank=1, code=-9)
    assert rank_exit_codes(output) == {0: 1, 1: -9}


def test_a_killed_rank_is_the_cause_and_its_peers_are_not() -> None:
    output = SUMMARY.format(rank=0, code=-15) + SUMMARY.format(rank=1, code=-9)
    lost = [{"error": "RuntimeError: Connection closed by peer", "rank": 0}]
    assert explain_failure(lost, output, 1, None).startswith("Rank 1 was killed by a signal (SIGKILL)")
    crashed = SUMMARY.format(rank=2, code=-11)
    assert "the driver and torch may not match" in explain_failure([], crashed, 1, None)


def test_every_other_end_is_in_words_too() -> None:
    raised = [{"error": "RuntimeError: NCCL error", "rank": 1}, {"error": "closed", "rank": 0}]
    assert explain_failure(raised, "", 1, None) == "Rank 1 failed: RuntimeError: NCCL error"
    assert "was not finished after 60 s" in explain_failure([], "", -9, 60.0)
    assert "was killed by a signal (SIGTERM)" in explain_failure([], "", -15, None)
    assert explain_failure([], "a\nNo module named torch\n", 1, None).endswith("1: No module named torch")
    assert explain_failure([], "", 2, None).endswith("2: it wrote nothing")
    assert len(explain_failure([{"error": "x" * 9_000, "rank": 0}], "", 1, None)) < 400
