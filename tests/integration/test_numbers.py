"""The numbers: golden losses, and that the number of ranks does not change what is computed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make_golden import CONFIG, LOSSES
from tests.harness import END_TIMEOUT_S, REPOSITORY, Launcher, LiveRun, torchrun_of

ACROSS_MACHINES = 1e-4
ACROSS_WORLD_SIZES = 1e-3


def test_golden_losses_of_a_seeded_two_rank_run(finished_run: LiveRun) -> None:
    """Relative tolerance 1e-4: other processors add up in another order.

    Made by tests/golden/make_golden.py.
    """
    golden = json.loads(LOSSES.read_text(encoding="utf-8"))
    config = finished_run.run.read_config().to_json()
    assert golden["config"] == CONFIG == {name: config[name] for name in CONFIG}
    measured = [finished_run.losses()[step] for step in range(1, len(golden["losses"]) + 1)]
    assert measured == pytest.approx(golden["losses"], rel=ACROSS_MACHINES)


def test_two_ranks_of_a_batch_train_like_one_rank_of_twice_the_batch(
    finished_run: LiveRun, launcher: Launcher
) -> None:
    """DDP's gradient is that of the global batch, also at an epoch's uneven last one.

    Step 23 has 29 samples: 15 for rank 0, 14 for rank 1.
    """
    alone = launcher.start(nproc_per_node=1, batch_size=64, max_steps=50, num_epochs=1000)
    assert alone.wait_for_end().state == "finished", alone.story()
    together = finished_run.losses()
    expected = {step: together[step] for step in range(1, 51)}
    assert alone.losses() == pytest.approx(expected, rel=ACROSS_WORLD_SIZES)


def test_evaluation_on_several_ranks_counts_exactly_what_one_rank_counts(tmp_path: Path) -> None:
    """355 samples in odd batches, which do not divide by the ranks: the same number right, the same loss."""
    one, found = (_evaluate(num_ranks, tmp_path / f"{num_ranks}.json") for num_ranks in (1, 3))
    assert 0 < one["num_correct"] < one["count"] == 355
    assert sum(map(sum, one["confusion"])) == 355
    assert sum(row[number] for number, row in enumerate(one["confusion"])) == one["num_correct"]
    assert (found["num_correct"], found["count"]) == (one["num_correct"], 355)
    assert found["macro_f1"] == one["macro_f1"] > 0
    assert found["confusion"] == one["confusion"]
    assert found["loss"] == pytest.approx(one["loss"], rel=1e-9)


def _evaluate(num_ranks: int, answer: Path) -> dict[str, Any]:
    command = torchrun_of(num_ranks, "tests.integration.evaluate_worker", str(answer))
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found
