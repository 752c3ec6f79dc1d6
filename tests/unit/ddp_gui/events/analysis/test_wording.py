"""Numbers in sentences have the same format as in the page's scripts."""

from __future__ import annotations

import math

import pytest

from ddp_gui.events.analysis import learning


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (2.3026, "2.3"),
        (0.4761, "0.476"),
        (0.0000996, "9.96e-5"),
        (12_345.6, "12,346"),
        (1.5e9, "1.50e+9"),
        (-0.0002, "-2.00e-4"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_a_number_has_three_digits(value: float, words: str) -> None:
    assert learning.short(value) == words
