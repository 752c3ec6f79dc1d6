"""The learning rate as a pure function of the step: a resumed run needs only its step.

Torch-free, so that the page can draw the curve before the run.
"""

from __future__ import annotations

import math

from trainers.contract.config import Config

# One cycle (Smith & Topin 2017), with the proportions of torch.optim.lr_scheduler.OneCycleLR.
ONE_CYCLE_RISE = 0.3
ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = 1 / 250_000


def factor_at(config: Config, step: int, *, num_steps: int, steps_per_epoch: int) -> float:
    """Return the factor of the peak rate in optimizer step `step` (1-based) of `num_steps`.

    The warm-up rises linearly and reaches 1 at its last step; the schedule covers the steps after it.
    """
    num_warmup = num_warmup_steps(config, num_steps)
    if step <= num_warmup:
        return step / num_warmup
    if config.lr_schedule == "constant":
        return 1.0
    if config.lr_schedule == "step":
        return config.lr_gamma ** ((step - 1) // steps_per_epoch // config.lr_step_epochs)
    # The rate is full in the first step after the warm-up and final in the last step of the run.
    num_after = max(1, num_steps - num_warmup)
    index = min(step - 1 - num_warmup, num_after - 1)
    share = index / max(1, num_after - 1)
    if config.lr_schedule == "cosine":
        return _cosine(1.0, 0.0, share)
    if config.lr_schedule == "linear":
        return 1.0 - share
    assert config.lr_schedule == "one_cycle"
    peak = max(0.0, ONE_CYCLE_RISE * num_after - 1)
    if index < peak:
        return _cosine(ONE_CYCLE_START, 1.0, index / peak)
    return _cosine(1.0, ONE_CYCLE_END, (index - peak) / max(1.0, num_after - 1 - peak))


def num_warmup_steps(config: Config, num_steps: int) -> int:
    """Return the number of warm-up steps, configured directly or as a share of the run."""
    return min(num_steps, config.warmup_steps or round(config.warmup_ratio * num_steps))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
