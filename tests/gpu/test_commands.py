"""Pause, Checkpoint, Stop and Resume on the page change nothing of what a GPU computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.clicks import ClickedRun, served
from tests.gpu.place import Place

NEVER = 10**9
# So many that the second pause comes long before the end: about 8 s of training, also of the small model.
NUM_STEPS = 3000
# fp16's loss scale is saved with the rest; not promised are the bits of its kernels after another beginning.
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
# On the CPU the smallest there is: convolutions in half the bits take long there.
SMALL = {"dataset": "digits", "model": "mlp"}


def disturb(live: ClickedRun) -> list[int]:
    """Pause, save, go on, pause, stop, resume, to the end; return at which steps that was."""
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
    place: Place, page_packages: None, tmp_path: Path, precision: str
) -> None:
    """The same bits in fp32 and bf16; fp16 within 1e-3 of each loss. Through the page, as a click does."""
    config: dict[str, Any] = CONFIG | ({} if place.is_fast else SMALL)
    config |= {"device": place.device, "precision": precision, "max_steps": NUM_STEPS}
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
