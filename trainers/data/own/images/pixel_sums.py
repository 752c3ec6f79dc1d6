"""What normalises images: sums of their bytes, exact, and what these come to over some of the images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainers.data.own.images.decoding import Pixels, Shape

Sums = npt.NDArray[np.int64]


def sums_of(pixels: Pixels) -> Sums:
    """Return (images, 2, channels): of each image and channel the sum of its bytes and of their squares."""
    # A byte's square has 16 bits; of the largest shape, 128 x 256 pixels, their sum has 32.
    squares = np.square(pixels, dtype=np.uint16)
    both = (pixels.sum(axis=(2, 3), dtype=np.uint32), squares.sum(axis=(2, 3), dtype=np.uint32))
    return np.stack(both, axis=1).astype(np.int64)


def mean_and_std(sums: Sums, shape: Shape) -> tuple[list[float], list[float]]:
    """Return each channel's mean and deviation over some images; a deviation is at least 1."""
    total = len(sums) * shape[1] * shape[2]
    mean, mean_square = sums.sum(axis=0) / total
    return mean.tolist(), np.sqrt(np.maximum(mean_square - mean**2, 1.0)).tolist()
