"""Recipes in real runs: the ranks do what is configured."""

from __future__ import annotations

import math

import pytest

from tests.harness import Launcher
from trainers.contract.config import Config, schedule

# The first run on a machine, with nothing compiled yet, took 52 s on two otherwise idle cores.
COMPILED_WITHIN_S = 900.0
LONG = {"num_epochs": 1000, "eval_every_steps": 10**6, "checkpoint_every_steps": 10**6}


def test_rates_clipping_and_smoothing_are_as_configured(launcher: Launcher) -> None:
    values = {
        "optimizer": "sgd",
        "nesterov": True,
        "lr_schedule": "cosine",
        "warmup_ratio": 0.25,
        "scale_lr": True,
        "learning_rate": 0.05,
        "max_grad_norm": 0.01,
        "label_smoothing": 0.1,
    }
    live = launcher.start(max_steps=40, **values, **LONG).finish()
    steps = live.events("step")
    config = Config(max_steps=40, num_epochs=1000, **values)  # type: ignore[arg-type]
    factors = [schedule.factor_at(config, step, num_steps=40, steps_per_epoch=23) for step in range(1, 41)]
    assert [event["lr"] for event in steps] == pytest.approx([0.1 * factor for factor in factors])
    assert steps[9]["lr"] == pytest.approx(0.1), "0.05 × two copies of the model, at the end of the warm-up"
    norms = [event["grad_norm"] for event in steps if event["grad_norm"] is not None]
    assert norms and all(norm > 0.01 for norm in norms), "the norm is the one before it was clipped"
    # Clipped to 0.01, steps with a rate of at most 0.1 hardly change the weights.
    assert steps[-1]["loss"] == pytest.approx(steps[0]["loss"], abs=0.1)


def test_run_that_no_longer_improves_ends_by_itself(launcher: Launcher) -> None:
    often = {"eval_every_steps": 5, "early_stopping_patience": 3}
    live = launcher.start(num_epochs=1000, learning_rate=0.01, **often).finish()
    accuracies = [event["metrics"]["accuracy"] for event in live.events("eval")]
    best = max(range(len(accuracies)), key=lambda index: (accuracies[index], -index))
    assert len(accuracies) == best + 4, "three evaluations after the first that was best"
    step = (best + 1) * 5
    status = f"best validation accuracy {accuracies[best]:.4g} at step {step}, 3 of 3 evaluations"
    reason = live.events("state")[-1]["reason"]
    assert reason == f"Stopped early at step {step + 15}: {status} without a better one."
    assert f"early stopping: {status}" in live.run.rank_log(0).read_text(encoding="utf-8")
    kept = [checkpoint.step for checkpoint in live.run.list_checkpoints()]
    assert step in kept, "the best one is kept"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_as_well(precision: str, launcher: Launcher) -> None:
    live = launcher.start(precision=precision, compile=precision == "bf16", max_steps=150, **LONG)
    assert live.wait_for_end(COMPILED_WITHIN_S).state == "finished", live.story()
    assert live.events("eval")[-1]["metrics"]["accuracy"] > 0.9
    assert all(math.isfinite(loss) for loss in live.losses().values())
    problems = [event for event in live.events("warning") if event["code"] != "compile_failed"]
    assert problems == []
