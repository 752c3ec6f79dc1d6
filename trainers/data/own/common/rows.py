"""Which rows are for training and which for validation: 80 to 20, from each class alike, by a fixed seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.data.tables import num_validation

SEED = 0

Rows = npt.NDArray[np.int64]


def split_rows(labels: npt.NDArray[Any] | None, num_rows: int) -> tuple[Rows, Rows]:
    """Return the row numbers of training and validation, mixed.

    Args:
        labels: (rows,) class numbers; None where there are no classes.
    """
    generator = np.random.default_rng(SEED)
    order = generator.permutation(num_rows)
    if labels is None:
        count = num_validation(num_rows)
        return order[count:], order[:count]
    order = order[np.argsort(labels[order], kind="stable")]
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sizes = np.diff(starts, append=num_rows)
    is_validation = np.zeros(num_rows, dtype=bool)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        is_validation[start : start + num_validation(size)] = True
    return generator.permutation(order[~is_validation]), generator.permutation(order[is_validation])
