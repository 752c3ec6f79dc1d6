"""Time limits as Slurm writes them: "30", "30:00", "1:30:00", "2-0", "2-12:30", "2-12:30:00", "infinite"."""

from __future__ import annotations

import math
import re

FORM = "minutes, hours:minutes:seconds or days-hours:minutes:seconds, such as 90, 1:30:00 or 2-12:00:00"
_MAX_LENGTH = 20
_UNLIMITED = frozenset({"infinite", "unlimited", "n/a", "not_set", ""})
_AFTER_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_WITHOUT_DAYS = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


def seconds(text: str) -> float:
    """Return how long a time limit is; infinite where there is none.

    Raises:
        ValueError: when Slurm would not read it, or as none.
    """
    text = text.strip().lower()
    if text in _UNLIMITED:
        return math.inf
    if len(text) <= _MAX_LENGTH:
        if found := _AFTER_DAYS.fullmatch(text):
            days, hours, minutes, rest = (int(part or 0) for part in found.groups())
            return ((days * 24.0 + hours) * 60 + minutes) * 60 + rest
        if found := _WITHOUT_DAYS.fullmatch(text):
            first, second, third = found.groups()
            if third is not None:
                return (int(first) * 60.0 + int(second)) * 60 + int(third)
            return int(first) * 60.0 + int(second or 0)
    raise ValueError(f"{text!r} is no time limit: {FORM}")


def in_words(limit_s: float) -> str:
    """Return a time limit as people say it: 30 min, 12 h, 7 days."""
    if math.isinf(limit_s):
        return "no time limit"
    for unit_s, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if limit_s >= 2 * unit_s or unit_s == 60:
            return f"{limit_s / unit_s:.3g} {name}"
    raise AssertionError
