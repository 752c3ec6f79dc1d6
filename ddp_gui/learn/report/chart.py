"""Draws curves as SVG that needs no script: a script of the file zooms it, by the numbers that it holds.

The curves lie in a picture of 100,000 by 100,000 units that is stretched to its place; what is written beside
it lies in pictures of its own, placed by percentages, and keeps its size on a phone and on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddp_gui.learn.report import axis as axis_module
from ddp_gui.learn.report import number_words
from ddp_gui.learn.report.axis import Axis
from ddp_gui.learn.report.curves import Curve
from ddp_gui.learn.report.markup import Html, joined, name_of, tag

UNITS = 100_000
NUM_COLORS, NUM_DASHES = 7, 5
_X_TICKS, _Y_TICKS = 6, 5
# Fewer points than this are shown as points.
_FEW_POINTS = 60


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve, and whose it is.

    Attributes:
        index: of its colour and dash; None: a prediction.
    """

    name: str
    index: int | None
    curve: Curve
    has_dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over one axis.

    Attributes:
        marks: what to look at: places on the x axis, with words.
    """

    title: str
    x_words: str
    y_words: str
    lines: Sequence[Line]
    is_logarithmic: bool = False
    is_share: bool = False
    from_zero: bool = False
    is_wide: bool = False
    marks: Sequence[tuple[float, str]] = ()
    caption: Html | None = None


def drawn(chart: Chart, max_points: int) -> Html | None:
    """Return a chart as a figure; None where none of its curves has a point.

    Args:
        max_points: of each curve.
    """
    lines = [line for line in chart.lines if np.isfinite(line.curve.y).any()]
    if not any(line.index is not None for line in lines):
        return None
    x = axis_module.along([line.curve.x for line in lines])
    y = axis_module.beside(
        [line.curve.y for line in lines],
        is_logarithmic=chart.is_logarithmic,
        is_share=chart.is_share,
        from_zero=chart.from_zero,
    )
    plot = tag(
        "svg",
        _grid(x, y),
        [_mark(x, place) for place, _ in chart.marks],
        [_line(line, x, y, max_points) for line in lines],
        class_="plot",
        viewBox=f"0 0 {UNITS} {UNITS}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    frame = tag(
        "div",
        tag("span", chart.y_words, class_="y-title"),
        _y_labels(y),
        plot,
        tag("svg", [_mark_words(x, *mark) for mark in chart.marks], class_="over", aria_hidden="true"),
        _x_labels(x),
        tag("span", chart.x_words, class_="x-title"),
        class_="frame",
        role="img",
        aria_label=_spoken(chart, lines),
    )
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("strong", _capital(chart.title)),
            tag("ul", [tag("li", sample(line.index), name_of(line.name)) for line in lines], class_="legend"),
        ),
        frame,
        tag("p", chart.caption, class_="caption") if chart.caption else None,
        class_="chart wide" if chart.is_wide else "chart",
        data_x=f"{x.low:.9g} {x.high:.9g}",
        data_y=f"{y.low:.9g} {y.high:.9g}",
        data_log=chart.is_logarithmic,
        data_share=chart.is_share,
        data_marks=" ".join(f"{place:.9g}" for place, _ in chart.marks) or None,
    )


def sample(index: int | None) -> Html:
    """Return a piece of a line, which says beside a name whose curve it is."""
    path = tag("path", d="M1 5H39", class_=f"line {line_class(index)}")
    return tag("svg", path, class_="sample", viewBox="0 0 40 10", aria_hidden="true")


def line_class(index: int | None) -> str:
    """Return the classes of colour and dash of the n-th line; they repeat at different numbers."""
    return "guess" if index is None else f"c{index % NUM_COLORS} d{index % NUM_DASHES}"


def _line(line: Line, x: Axis, y: Axis, max_points: int) -> Html:
    curve = line.curve
    if len(curve.x) > max_points:
        curve = curve.thinned(max_points)
    across = np.round((curve.x - x.low) / (x.high - x.low) * UNITS)
    scaled = y.scaled(curve.y)
    up = np.round((y.high - scaled) / (y.high - y.low) * UNITS)
    is_there = np.isfinite(up)
    paths = []
    if line.has_dots and len(curve.x) <= _FEW_POINTS:
        dots = "".join(f"M{px:.0f} {py:.0f}h0" for px, py in zip(across[is_there], up[is_there], strict=True))
        paths.append(tag("path", d=dots, class_=f"dots {line_class(line.index)}"))
    classes = f"line {line_class(line.index)}"
    paths.append(tag("path", d=path_of(across, up), class_=classes, data_name=line.name))
    return joined(paths)


def path_of(across: np.ndarray, up: np.ndarray) -> str:
    """Return points as the `d` of a path: each piece without a gap is `M` and steps from point to point."""
    is_there = np.isfinite(up)
    pieces = []
    for piece in np.split(np.arange(len(up)), np.flatnonzero(np.diff(is_there.astype(int))) + 1):
        if len(piece) == 0 or not is_there[piece[0]]:
            continue
        px, py = across[piece].astype(int), up[piece].astype(int)
        steps = np.column_stack([np.diff(px), np.diff(py)]).ravel().tolist() or [0, 0]
        written = " ".join(map(str, steps)).replace(" -", "-")
        pieces.append(f"M{px[0]} {py[0]}l{written}")
    return "".join(pieces)


def _grid(x: Axis, y: Axis) -> Html:
    across = "".join(f"M0 {_up(y, place)}H{UNITS}" for place, _ in y.ticks(_Y_TICKS))
    upward = "".join(f"M{_along(x, place)} 0V{UNITS}" for place, _ in x.ticks(_X_TICKS))
    return tag("path", d=across + upward, class_="grid")


def _mark(x: Axis, place: float) -> Html:
    return tag("path", d=f"M{_along(x, place)} 0V{UNITS}", class_="mark")


def _mark_words(x: Axis, place: float, words: str) -> Html:
    share = x.share_of(place)
    is_late = share > 0.6
    return tag(
        "text",
        words,
        x=_percent(share),
        y="16",
        dx="-6" if is_late else "6",
        text_anchor="end" if is_late else "start",
    )


def _y_labels(y: Axis) -> Html:
    texts = [
        tag("text", words, x="100%", y=_percent(1 - y.share_of(place)), dx="-6", dy="4", text_anchor="end")
        for place, words in y.ticks(_Y_TICKS)
    ]
    return tag("svg", texts, class_="y-ticks", aria_hidden="true")


def _x_labels(x: Axis) -> Html:
    texts = [
        tag("text", words, x=_percent(x.share_of(place)), y="15", text_anchor="middle")
        for place, words in x.ticks(_X_TICKS)
    ]
    return tag("svg", texts, class_="x-ticks", aria_hidden="true")


def _spoken(chart: Chart, lines: Sequence[Line]) -> str:
    """Say the ends of each curve, for whoever does not see it."""
    parts = []
    for line in lines:
        y = line.curve.y[np.isfinite(line.curve.y)]
        first, last = (_value(chart, float(value)) for value in (y[0], y[-1]))
        parts.append(f"{line.name}: from {first} to {last}")
    return f"{_capital(chart.title)} over {chart.x_words}. {'; '.join(parts)}."


def _value(chart: Chart, value: float) -> str:
    return f"{value:.1%}" if chart.is_share else number_words.number(value)


def _up(y: Axis, place: float) -> int:
    return round((1 - y.share_of(place)) * UNITS)


def _along(x: Axis, place: float) -> int:
    return round(x.share_of(place) * UNITS)


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
