"""The content of the golden event file: its generator writes it, the test expects it from our writer."""

from __future__ import annotations

BEGAN = 1763737200.25
# (time_unix_s, step, {tag: value}): steps of one, two and three bytes, tags of several lengths.
SCALARS: tuple[tuple[float, int, dict[str, float]], ...] = (
    (1763737201.5, 1, {"train/loss": 2.302585, "train/lr": 0.002}),
    (1763737202.5, 127, {"train/loss": 1.5, "train/lr": 0.002}),
    (1763737203.5, 128, {"train/loss": 1.25, "train/lr": 0.0}),
    (1763737204.5, 16384, {"train/loss": -0.125, "train/lr": 1e-30}),
    (1763737205.5, 16384, {"validation/loss": 0.5, "validation/" + "long" * 40: 0.875}),
)
