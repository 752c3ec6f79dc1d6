"""How each rank's step divided over the run: slices of time for a picture, median and 95th percentile.

The steps are those of the `ranks` events, about one a second: their median is not that of all steps.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ddp_gui.events.series import RANK_PARTS, Series
from ddp_gui.events.tables import Table

MAX_SLICES = 40
# Below this, a 95th percentile is little more than the largest sample.
FEWEST_FOR_P95 = 20
DIGITS = 4
EXACT = 9


def of_run(series: Series) -> list[dict[str, Any]]:
    """Return for each rank median and 95th percentile of its sampled steps, and the means of slices.

    `p95_s` is null for fewer than `FEWEST_FOR_P95` samples; `first_step` and `last_step` are the range of the
    sampled steps.
    A slice is a list of seconds, in the order of `RANK_PARTS`; null where a part was not measured.
    """
    return [
        {"rank": rank, **_of_rank(table)} for rank, table in sorted(series.ranks.items()) if table.length > 0
    ]


def _of_rank(table: Table) -> dict[str, Any]:
    step = table.column("step").astype(np.float64)
    parts = np.array([table.column(name) for name in RANK_PARTS], np.float64)
    slices = np.array_split(parts, min(MAX_SLICES, table.length), axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a part that was never measured has no mean
        means = [np.nanmean(piece, axis=1) for piece in slices]
    return {
        "num_samples": table.length,
        "first_step": int(table.x("step")[0]),
        "last_step": int(table.x("step")[-1]),
        # The page rounds them once more: twice to few digits is not to the nearest.
        "median_s": _rounded(float(np.median(step)), EXACT),
        "p95_s": _rounded(float(np.percentile(step, 95)), EXACT) if table.length >= FEWEST_FOR_P95 else None,
        "slices": [[_rounded(float(value)) for value in mean] for mean in means],
    }


def _rounded(value: float, digits: int = DIGITS) -> float | None:
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None
