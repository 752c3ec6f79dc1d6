"""Numbers in sentences about a run, written as the page's scripts write them."""

from __future__ import annotations

import math

FIRST_WITHOUT_EXPONENT = 0.001
FIRST_IN_THOUSANDS = 1_000
FIRST_WITH_EXPONENT = 1e9


def short(value: float) -> str:
    """Return a number with three digits: 0.0123, 12,345, 1.23e-4 (assets/js/shared/format.js)."""
    size = abs(value)
    if not math.isfinite(value) or FIRST_WITHOUT_EXPONENT <= size < FIRST_IN_THOUSANDS or size == 0:
        return f"{value:.3g}"
    if FIRST_IN_THOUSANDS <= size < FIRST_WITH_EXPONENT:
        return f"{value:,.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits}e{int(exponent):+d}"
