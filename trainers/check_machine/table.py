"""The table of a check as text, each line printed as soon as it is known."""

from __future__ import annotations

from trainers.check_machine.checks.findings import SIGNS, Finding, Value

_TITLE_WIDTH = 44
_STATE_WIDTH = 21


def line(finding: Finding) -> str:
    """Return the lines of one finding: what it is, whether it passed, its seconds and words."""
    sign, words = SIGNS[finding.state]
    took = "" if finding.seconds is None else f"{finding.seconds:.1f} s"
    first = f"{sign} {words:<{_STATE_WIDTH}}{finding.title:<{_TITLE_WIDTH}}{took:>8}"
    measured = ", ".join(f"{value.name}: {value_in_words(value)}" for value in finding.values)
    rest = [text for text in (finding.words, measured) if text]
    if finding.compared:
        rest.append(f"Compared with last time: {finding.compared}")
    if finding.hint:
        rest.append(f"What to do: {finding.hint}")
    return "\n".join([first, *(f"    {text}" for text in rest)])


def value_in_words(value: Value) -> str:
    """Return a measured number with its unit."""
    if value.unit == "s":
        return f"{value.value * 1e3:.2g} ms" if value.value < 0.1 else f"{value.value:.1f} s"
    if value.unit == "bytes/s":
        large = value.value >= 1e9
        return f"{value.value / 1e9:.1f} GB/s" if large else f"{value.value / 1e6:.0f} MB/s"
    return f"{value.value:.2g}"
