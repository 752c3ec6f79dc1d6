"""How each rank's step divided over the run: slices of time for a picture, median and 95th percentile."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ddp_gui.events.series import RANK_PARTS, Series
from ddp_gui.events.tables import Table

MAX_SLICES = 40
DIGITS = 4
EXACT = 9


def of_run(series: Series) -> list[dict[str, Any]]:
    """Return for each rank median and 95th percentile of its sampled steps, and the means of slices.

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
        # The page rounds them once more: twice to few digits is not to the nearest.
        "median_s": _rounded(float(np.median(step)), EXACT),
        "p95_s": _rounded(float(np.percentile(step, 95)), EXACT),
        "slices": [[_rounded(float(value)) for value in mean] for mean in means],
    }


def _rounded(value: float, digits: int = DIGITS) -> float | None:
    return float(f"{value:.{digits}g}") if np.isfinite(value) else None
