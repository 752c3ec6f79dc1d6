"""HTML and numbers of the lab report; every text is escaped."""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from ddp_gui.http.shell import visible

_VOID = frozenset({"br", "hr", "meta"})
_ADDRESSES = ("https://", "http://")
_INLINES = {"b": "strong", "i": "em", "code": "code"}

Child = str | Iterable["Child"] | None


class Html(str):
    """Text that is HTML already: made by this module only."""

    __slots__ = ()


def text(words: object) -> Html:
    """Return a value as text."""
    return Html(html.escape(visible(str(words))))


def tag(element: str, /, *children: Child, **attributes: object) -> Html:
    """Return an element; `class_` is written `class`, `data_x` is written `data-x`.

    An attribute that is None or False is left out, as is a child that is None.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Html(f"<{element}{written}>")
    return Html(f"<{element}{written}>{joined(children)}</{element}>")


def joined(children: Child) -> Html:
    """Return children one after the other."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return text(children)
    return Html("".join(map(joined, children)))


def name_of(words: object) -> Html:
    """Return a name that somebody gave, whatever its direction of writing."""
    return tag("bdi", str(words))


def inlines(tree: Sequence[Any]) -> Html:
    """Return a paragraph's inside of a lesson, as `ddp_gui.learn.lesson` gives it."""
    return joined(_inline(part) for part in tree)


def _inline(part: Any) -> Html:
    if isinstance(part, str):
        return text(part)
    kind, *inside = part
    if kind == "link" and str(inside[0]).startswith(_ADDRESSES):
        return tag("a", inlines(inside[1]), href=inside[0], rel="noreferrer")
    if kind == "code":
        return tag("code", inside[0])
    if kind in _INLINES:
        return tag(_INLINES[kind], inlines(inside[0]))
    return inlines(inside[-1])  # a term: the glossary is not in the file


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


UNKNOWN = "–"
# Metrics that are shares of a whole.
SHARES = frozenset({"accuracy", "top5_accuracy", "macro_f1"})
_SHORT_NAMES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "macro_f1": "macro F1",
    "top5_accuracy": "top-5 accuracy",
}
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
# From here on digits say nothing.
_TOO_LONG = 1e15
_LAST_UNIX_S = 1e11


def count(value: float | None) -> str:
    """12,345."""
    if not _is_number(value):
        return UNKNOWN
    return f"{round(value):,}" if abs(value) < _TOO_LONG else f"{value:.2e}"


def number(value: float | None, digits: int = 4) -> str:
    """Some significant digits, and no exponent for everyday sizes."""
    if not _is_number(value):
        return UNKNOWN
    size = abs(value)
    if size != 0 and (size < 1e-4 or size >= 1e9):
        return f"{value:.2e}"
    if size >= 1000:
        return count(value)
    decimals = digits if size == 0 else max(0, digits - 1 - math.floor(math.log10(size)))
    written = f"{value:.{decimals}f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


def loss(value: float | None) -> str:
    """Four decimals."""
    if not _is_number(value):
        return UNKNOWN
    size = abs(value)
    if size >= 100:
        return number(value)
    return f"{value:.4f}" if size >= 0.01 or size == 0 else f"{value:.3g}"


def metric(name: str, value: float | None) -> str:
    """A metric by its name: shares in percent, all others as numbers."""
    if not _is_number(value):
        return UNKNOWN
    if name in SHARES:
        return f"{value:.1%}"
    return f"{value:.2f}" if 1 <= abs(value) < 100 else number(value, 3)


def metric_label(name: str) -> str:
    """Return what a metric is called: `bits_per_character` is bits per character."""
    return _SHORT_NAMES.get(name, name.replace("_", " "))


def size(value: float | None) -> str:
    """2.5 MB, in decimal units."""
    if not _is_number(value) or value < 0:
        return UNKNOWN
    unit, name = next((each for each in _UNITS if value >= each[0]), (1.0, "bytes"))
    scaled = value / unit
    return f"{scaled:.1f} {name}" if scaled < 10 and unit > 1 else f"{scaled:.0f} {name}"


def short_time(seconds: float | None) -> str:
    """370 µs, 3.24 ms, 1.25 s; more than two minutes as `duration` says it."""
    if not _is_number(seconds) or seconds < 0:
        return UNKNOWN
    if seconds >= 120:
        return duration(seconds)
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    milliseconds = seconds * 1e3
    decimals = sum(milliseconds < border for border in (9.995, 99.95))
    return f"{milliseconds:.{decimals}f} ms"


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 10 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02d} min"


def moment(unix_s: float | None) -> str:
    """24 November 2026, 22:41 UTC: in the time zone of the machine that the page is on."""
    if not _is_number(unix_s) or not 0 <= unix_s < _LAST_UNIX_S:
        return UNKNOWN
    local = datetime.datetime.fromtimestamp(unix_s).astimezone()
    return f"{local.day} {local:%B %Y, %H:%M %Z}"


def _is_number(value: float | None) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
