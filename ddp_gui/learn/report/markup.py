"""HTML elements and number formats of the lab report. All text is escaped."""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

from ddp_gui.http.shell import visible

_VOID = frozenset({"br", "hr", "img", "input", "meta"})
_ADDRESSES = ("https://", "http://")
_INLINES = {"b": "strong", "i": "em", "code": "code"}

Child = str | Iterable["Child"] | None


class Html(str):
    """Text that is already HTML; only this module creates it."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as escaped text."""
    return Html(html.escape(visible(str(value))))


def tag(element: str, /, *children: Child, **attributes: object) -> Html:
    """Return an HTML element. `class_` becomes `class`, and `data_x` becomes `data-x`.

    Omits attributes that are None or False, and children that are None.
    """
    attribute_text = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in _VOID:
        return Html(f"<{element}{attribute_text}>")
    return Html(f"<{element}{attribute_text}>{joined(children)}</{element}>")


def joined(children: Child) -> Html:
    """Concatenate children; text is escaped."""
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return text(children)
    return Html("".join(map(joined, children)))


def name_of(name: object) -> Html:
    """Return a user-defined name in an element that isolates its text direction."""
    return tag("bdi", str(name))


def table(
    heads: Sequence[Child], rows: Iterable[Child], *, label: str = "", class_: str | None = None
) -> Html:
    """Return a table.

    Args:
        heads: contents of the column headers; None for the corner.
        rows: the cells of each row.
        label: accessible name of a scrollable table; empty if the table does not scroll.
    """
    head_cells = [tag("td") if head is None else tag("th", head, scope="col") for head in heads]
    body = [tag("tr", row) for row in rows]
    element = tag("table", tag("thead", tag("tr", head_cells)), tag("tbody", body), class_=class_)
    return (
        tag("div", element, class_="scroll", tabindex="0", role="group", aria_label=label)
        if label
        else element
    )


def facts(pairs: Iterable[tuple[Child, Child]], class_: str | None = "facts") -> Html:
    """Return a list of terms and their descriptions."""
    return tag(
        "dl",
        [tag("div", tag("dt", term), tag("dd", description)) for term, description in pairs],
        class_=class_,
    )


def inlines(tree: Sequence[Any], href_of_term: Callable[[str], str] | None = None) -> Html:
    """Convert the inline elements of a lesson's paragraph (`ddp_gui.learn.lesson`) to HTML.

    Args:
        href_of_term: returns the address of a term's definition; without it terms are plain text.
    """
    return joined(_inline(part, href_of_term) for part in tree)


def _inline(part: Any, href_of_term: Callable[[str], str] | None) -> Html:
    if isinstance(part, str):
        return text(part)
    kind, *content = part
    if kind == "link" and str(content[0]).startswith(_ADDRESSES):
        return tag("a", inlines(content[1], href_of_term), href=content[0], rel="noreferrer")
    if kind == "code":
        return tag("code", content[0])
    if kind in _INLINES:
        return tag(_INLINES[kind], inlines(content[0], href_of_term))
    label = inlines(content[-1])
    if kind == "term" and href_of_term is not None:
        return tag("a", label, href=href_of_term(content[0]), class_="term")
    return label


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


UNKNOWN = "–"
# Metrics that are fractions, displayed as percentages.
SHARES = frozenset({"accuracy", "top5_accuracy", "macro_f1"})
_SHORT_NAMES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "macro_f1": "macro F1",
    "top5_accuracy": "top-5 accuracy",
}
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
# From this size on, digits are not significant.
_TOO_LONG = 1e15
_LAST_UNIX_S = 1e11


def count(value: float | None) -> str:
    """Format a count: 12,345."""
    if not _is_number(value):
        return UNKNOWN
    return f"{round(value):,}" if abs(value) < _TOO_LONG else f"{value:.2e}"


def number(value: float | None, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, without an exponent for common sizes."""
    if not _is_number(value):
        return UNKNOWN
    size = abs(value)
    if size != 0 and (size < 1e-4 or size >= 1e9):
        return f"{value:.2e}"
    if size >= 1000:
        return count(value)
    decimals = digits if size == 0 else max(0, digits - 1 - math.floor(math.log10(size)))
    formatted = f"{value:.{decimals}f}"
    return formatted.rstrip("0").rstrip(".") if "." in formatted else formatted


def loss(value: float | None) -> str:
    """Format a loss with four decimals."""
    if not _is_number(value):
        return UNKNOWN
    size = abs(value)
    if size >= 100:
        return number(value)
    return f"{value:.4f}" if size >= 0.01 or size == 0 else f"{value:.3g}"


def metric(name: str, value: float | None) -> str:
    """Format a metric: fractions as percentages, all others as numbers."""
    if not _is_number(value):
        return UNKNOWN
    if name in SHARES:
        return f"{value:.1%}"
    return f"{value:.2f}" if 1 <= abs(value) < 100 else number(value, 3)


def metric_label(name: str) -> str:
    """Return a metric's display name: `bits_per_character` becomes "bits per character"."""
    return _SHORT_NAMES.get(name, name.replace("_", " "))


def size(value: float | None) -> str:
    """Format a size in bytes with decimal units: 2.5 MB."""
    if not _is_number(value) or value < 0:
        return UNKNOWN
    unit, name = next((entry for entry in _UNITS if value >= entry[0]), (1.0, "bytes"))
    scaled = value / unit
    return f"{scaled:.1f} {name}" if scaled < 10 and unit > 1 else f"{scaled:.0f} {name}"


def short_time(seconds: float | None) -> str:
    """Format a short time: 370 µs, 3.24 ms, 1.25 s; from two minutes on like `duration`."""
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
    """Format a duration: 12 s, 3 min 05 s, 2 h 10 min."""
    rounded_s = max(0, round(seconds))
    if rounded_s < 60:
        return f"{rounded_s} s"
    if rounded_s < 3600:
        return f"{rounded_s // 60} min {rounded_s % 60:02d} s"
    return f"{rounded_s // 3600:,} h {rounded_s % 3600 // 60:02d} min"


def moment(unix_s: float | None) -> str:
    """Format a time in the server's time zone: 24 November 2026, 22:41 UTC."""
    if not _is_number(unix_s) or not 0 <= unix_s < _LAST_UNIX_S:
        return UNKNOWN
    local = datetime.datetime.fromtimestamp(unix_s).astimezone()
    return f"{local.day} {local:%B %Y, %H:%M %Z}"


def _is_number(value: float | None) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
