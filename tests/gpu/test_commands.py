"""Pause, Checkpoint, Stop and Resume on the page do not change the results of a run on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.clicks import ClickedRun, served
from tests.gpu.place import Place
from trainers.machine import threads

NEVER = 10**9
# Enough that the second pause comes long before the end: about 8 s of training, also for the small model.
NUM_STEPS = 3000
# fp16's loss scale is saved too, but its kernels are not guaranteed to give the same bits after a restart.
FP16 = 1e-3
CONFIG = {
    "dataset": "fashion_mnist",
    "model": "cnn",
    "batch_size": 32,
    "nproc_per_node": 1,
    "num_epochs": 100_000,
    "eval_every_steps": NEVER,
    "checkpoint_every_steps": NEVER,
    "keep_best_checkpoint": False,
    "deterministic": True,
}
# The smallest model for the CPU, where convolutions in half precision are slow.
SMALL = {"dataset": "digits", "model": "mlp"}


def disturb(live: ClickedRun) -> list[int]:
    """Pause, save, continue, pause, stop and resume to the end. Return the steps of both pauses."""
    first = live.pause_at_start()
    live.checkpoint()
    live.click("resume_run")
    live.wait_for_state("running")
    second = live.pause()
    live.stop()
    saved = [item.step for item in live.run.list_checkpoints()]
    assert saved == sorted({first, second}), live.story()
    live.resume_to_end()
    return [first, second]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_disturbed_run_computes_what_an_undisturbed_one_does(
    place: Place,
    page_packages: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
) -> None:
    """The bits are the same in fp32 and bf16, and each loss within 1e-3 in fp16. Commands use endpoints."""
    config: dict[str, Any] = CONFIG | ({} if place.is_fast else SMALL)
    config |= {"device": place.device, "precision": precision, "max_steps": NUM_STEPS}
    monkeypatch.setenv(threads.GIVEN, "1")  # other free cores at a start would round sums in another way
    with served(tmp_path / "runs", "--no-standby") as page:
        undisturbed = page.start(**config)
        undisturbed.wait_for_end("finished")
        disturbed = page.start(**config)
        first, second = disturb(disturbed)
    assert 0 < first < second < NUM_STEPS, "it was disturbed before its end"
    expected, found = undisturbed.losses(), disturbed.losses()
    assert sorted(expected) == sorted(found) == list(range(1, NUM_STEPS + 1))
    if precision == "fp16":
        assert found == pytest.approx(expected, abs=FP16)
    else:
        different = [step for step in expected if expected[step] != found[step]]
        assert not different, f"from step {different[0]} on; disturbed after {first} and {second}"
