"""Charts of the lab report as static SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddp_gui.events.analysis import pace
from ddp_gui.events.tables import Smoothing, thin
from ddp_gui.learn.report import markup
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured

Numbers = npt.NDArray[np.float64]

# Curves with one point per step.
OF_STEPS = ("loss", "throughput")
VALIDATION = "validation_loss"
METRIC = "metric:"
AXES = {
    "step": "optimizer step",
    "samples": "samples trained on, all ranks together",
    "time": "seconds since the start",
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points sorted by x; gaps are NaN."""

    x: Numbers
    y: Numbers

    def thinned(self, max_points: int) -> Curve:
        """Return at most `max_points` of the points, chosen so that every peak and dip stays visible."""
        chosen = thin(self.x, self.y, max_points)
        return Curve(x=self.x[chosen], y=self.y[chosen])

    def value_at(self, x: float) -> float | None:
        """Return the y value of the point nearest to x; None if there is none."""
        if len(self.x) == 0:
            return None
        near = int(np.argmin(np.abs(self.x - x)))
        value = float(self.y[near])
        return value if np.isfinite(value) else None


EMPTY = Curve(x=np.empty(0), y=np.empty(0))


def curve_of(run: Measured, name: str, axis: str, smoothing: float = 0) -> Curve:
    """Return a curve of a run; empty if it was not measured.

    Args:
        name: `loss`, `throughput`, `validation_loss` or `metric:NAME`.
        axis: one of `AXES`.
        smoothing: smoothing width in units of the axis; only for curves with one point per step.
    """
    is_of_steps = name in OF_STEPS
    table = run.series.steps if is_of_steps else run.series.evaluation_table
    if name not in table.fields or table.length == 0:
        return EMPTY
    if is_of_steps and smoothing > 1:
        over: Smoothing = "samples" if axis == "samples" else "time" if axis == "time" else "step"
        y = run.series.smoothed(name, smoothing, over, 0, table.length)
    else:
        y = table.column(name).astype(np.float64)
    steps = table.x("step")
    places = run.samples_at(steps) if axis == "samples" else table.x("time" if axis == "time" else "step")
    x: Numbers = np.asarray(places, np.float64)
    y = np.where(np.isfinite(y), y, np.nan)
    is_there = np.isfinite(x) if is_of_steps else np.isfinite(x) & np.isfinite(y)
    # Keep x monotonic even if the clock was set back.
    x = np.maximum.accumulate(x[is_there]) if is_there.any() else x[is_there]
    return Curve(x=x, y=y[is_there])


def curve_label(name: str) -> str:
    """Return a curve's display name."""
    if name == "loss":
        return "training loss"
    if name in OF_STEPS:
        return name
    if name == VALIDATION:
        return "validation loss"
    return f"validation {markup.metric_label(name.removeprefix(METRIC))}"


def axis_title(name: str) -> str:
    """Return the title of a curve's y axis."""
    return "samples per second, all ranks" if name == "throughput" else curve_label(name)


def is_share(name: str) -> bool:
    """Return True if the curve's values are fractions, displayed as percentages."""
    return name.removeprefix(METRIC) in markup.SHARES


_MARGIN = 0.04
_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values; for a logarithmic axis, of their base-10 logarithms."""

    low: float
    high: float
    is_logarithmic: bool = False
    is_share: bool = False

    def scaled(self, values: Numbers) -> Numbers:
        """Convert values to axis coordinates; NaN if a value has no logarithm."""
        if not self.is_logarithmic:
            return values
        with np.errstate(invalid="ignore", divide="ignore"):
            logarithms = np.log10(values)
        return np.where(np.isfinite(logarithms), logarithms, np.nan)

    def share_of(self, value: float) -> float:
        """Return the relative position of an axis coordinate: 0 is the start, 1 the end."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Return tick positions in axis coordinates, with their labels."""
        if self.is_logarithmic:
            return self._powers(most)
        step = _step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [
            (index * step, _label(index * step, step, is_share=self.is_share))
            for index in range(first, last + 1)
        ]

    def _powers(self, most: int) -> list[tuple[float, str]]:
        factors = (1, 2, 5) if self.high - self.low < most / 3 else (1,)
        every = max(1, math.ceil((self.high - self.low) / most))
        found = []
        for power in range(math.floor(self.low), math.ceil(self.high) + 1, every):
            for factor in factors:
                place = power + math.log10(factor)
                if self.low <= place <= self.high:
                    found.append((place, f"{factor * 10.0**power:.6g}"))
        return found


def x_axis(values: Sequence[Numbers]) -> Axis:
    """Return the x axis of the curves. It begins at 0, or at the smallest x if that is negative."""
    ends = [(float(each[0]), float(each[-1])) for each in values if len(each)]
    low, high = min([0.0, *(end[0] for end in ends)]), max([0.0, *(end[1] for end in ends)])
    return Axis(low=low, high=high if high > low else low + 1.0)


def y_axis(
    values: Sequence[Numbers],
    *,
    is_logarithmic: bool = False,
    is_share: bool = False,
    from_zero: bool = False,
) -> Axis:
    """Return the y axis of the curves, with a margin at both ends."""
    plain = Axis(low=0, high=1, is_logarithmic=is_logarithmic)
    scaled = [plain.scaled(each) for each in values]
    there = [each[np.isfinite(each)] for each in scaled]
    ends = [(float(each.min()), float(each.max())) for each in there if len(each)]
    low, high = (min(end[0] for end in ends), max(end[1] for end in ends)) if ends else (0.0, 1.0)
    is_from_zero = from_zero and not is_logarithmic and low >= 0
    low = 0.0 if is_from_zero else low
    room = (high - low) * _MARGIN or max(abs(high), 1.0) * _MARGIN
    return Axis(
        low=low if is_from_zero else low - room,
        high=high + room,
        is_logarithmic=is_logarithmic,
        is_share=is_share,
    )


def _step(wanted: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not below `wanted`."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in _STEPS if step * power >= wanted * (1 - 1e-9))


def _label(value: float, step: float, *, is_share: bool) -> str:
    if is_share:
        return f"{value * 100:.{max(0, -math.floor(math.log10(step * 100) + 1e-9))}f}%"
    if max(abs(value), step) >= 1e9 or step < 1e-6:
        return f"{value:.3g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


UNITS = 100_000
NUM_COLORS, NUM_DASHES = 7, 5
_X_TICKS, _Y_TICKS = 6, 5
# Curves with at most this number of points also get a dot per point.
_FEW_POINTS = 60


@dataclass(frozen=True, kw_only=True)
class Line:
    """A named curve of a chart.

    Attributes:
        index: selects colour and dash pattern; None for a prediction.
    """

    name: str
    index: int | None
    curve: Curve
    has_dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over a common x axis.

    Attributes:
        marks: labelled positions on the x axis.
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


def draw_chart(chart: Chart, max_points: int) -> Html | None:
    """Draw a chart as a figure; None if no measured curve has a point.

    Args:
        max_points: maximum number of points per curve.
    """
    lines = [line for line in chart.lines if np.isfinite(line.curve.y).any()]
    if not any(line.index is not None for line in lines):
        return None
    x = x_axis([line.curve.x for line in lines])
    y = y_axis(
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
        aria_label=_aria_label(chart, lines),
    )
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("strong", _capitalized(chart.title)),
            tag(
                "ul",
                [tag("li", line_sample(line.index), name_of(line.name)) for line in lines],
                class_="legend",
            ),
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


def line_sample(index: int | None) -> Html:
    """Return a short piece of a line for legends."""
    path = tag("path", d="M1 5H39", class_=f"line {line_class(index)}")
    return tag("svg", path, class_="sample", viewBox="0 0 40 10", aria_hidden="true")


def line_class(index: int | None) -> str:
    """Return the CSS classes for colour and dash; their periods differ, so pairs repeat late."""
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
    """Return the `d` of an SVG path. Each piece without a gap is `M` followed by relative steps."""
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


def _aria_label(chart: Chart, lines: Sequence[Line]) -> str:
    """Return an accessible label with the first and last value of each curve."""
    parts = []
    for line in lines:
        y = line.curve.y[np.isfinite(line.curve.y)]
        first, last = (_value(chart, float(value)) for value in (y[0], y[-1]))
        parts.append(f"{line.name}: from {first} to {last}")
    return f"{_capitalized(chart.title)} over {chart.x_words}. {'; '.join(parts)}."


def _value(chart: Chart, value: float) -> str:
    return f"{value:.1%}" if chart.is_share else markup.number(value)


def _up(y: Axis, place: float) -> int:
    return round((1 - y.share_of(place)) * UNITS)


def _along(x: Axis, place: float) -> int:
    return round(x.share_of(place) * UNITS)


def _percent(share: float) -> str:
    return f"{share * 100:.3f}".rstrip("0").rstrip(".") + "%"


def _capitalized(words: str) -> str:
    return words[:1].upper() + words[1:]


USUAL_SMOOTHING = 20
_SMOOTHED_OVER = {"step": "steps", "samples": "samples", "time": "seconds"}
_TOO_SHORT = "too short to measure"


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run in a figure: its display name and its index there."""

    name: str
    index: int
    run: Measured


def standard_charts(runs: Sequence[ShownRun], max_points: int, without: Sequence[str] = ()) -> Html:
    """Return charts of training loss, validation and throughput, if they were measured."""

    def charts(*names: str, is_wide: bool = False) -> list[Html | None]:
        wanted = [name for name in names if name not in without]
        return [
            chart_of_curve(runs, name, "step", max_points, smoothing=USUAL_SMOOTHING, is_wide=is_wide)
            for name in wanted
        ]

    return joined(
        [
            chart_grid(charts("loss", is_wide=True)),
            chart_grid(charts(*_evaluated(runs), "throughput"), "more"),
        ]
    )


def chart_grid(figures: Sequence[Html | None], more: str = "") -> Html | None:
    """Arrange figures in a grid; None if there are none."""
    found = [each for each in figures if each is not None]
    return tag("div", found, class_=f"pictures {more}".strip()) if found else None


def chart_of_curve(
    runs: Sequence[ShownRun],
    name: str,
    axis: str,
    max_points: int,
    *,
    smoothing: float = 0,
    guess: Curve | None = None,
    is_wide: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Html | None:
    """Draw one curve of all runs; None if no run has it.

    Args:
        guess: predicted curve, drawn below the others.
        about: the lesson's picture, with its caption, marks and scale.
    """
    about = about or {}
    is_of_steps = name in OF_STEPS
    lines = [Line(name="my prediction", index=None, curve=guess)] if guess is not None else []
    lines += [
        Line(
            name=shown.name,
            index=shown.index,
            curve=curve_of(shown.run, name, axis, smoothing),
            has_dots=not is_of_steps,
        )
        for shown in runs
    ]
    words = curve_label(name)
    is_smoothed = is_of_steps and smoothing > 1
    return draw_chart(
        Chart(
            title=f"{words}, smoothed over {smoothing:,g} {_SMOOTHED_OVER[axis]}" if is_smoothed else words,
            x_words=AXES.get(axis, axis),
            y_words=axis_title(name),
            lines=lines,
            is_logarithmic=bool(about.get("is_logarithmic")),
            is_share=is_share(name),
            from_zero=name == "throughput",
            is_wide=is_wide,
            marks=[(mark["x"], mark["words"]) for mark in about.get("marks", ())],
            caption=inlines(about["caption"]) if about.get("caption") else None,
        ),
        max_points,
    )


def numbers_table(runs: Sequence[ShownRun], names: Sequence[str], caption: Html | None = None) -> Html | None:
    """Return a table with one row per number and one column per run; None without runs."""
    known = [name for name in names if name in ROWS]
    if not runs or not known:
        return None
    heads = [tag("th", line_sample(shown.index), name_of(shown.name), scope="col") for shown in runs]
    rows = []
    for name in known:
        title, words = ROWS[name]
        cells = [tag("td", words(shown.run, runs[0].run)) for shown in runs]
        rows.append(tag("tr", tag("th", title, scope="row"), cells))
    return tag(
        "figure",
        tag(
            "div",
            tag("table", tag("thead", tag("tr", tag("td"), heads)), tag("tbody", rows)),
            class_="scroll",
            tabindex="0",
            role="group",
            aria_label="Measurements of each run",
        ),
        tag("p", caption, class_="caption") if caption else None,
        class_="numbers",
    )


def validation_text(run: Measured) -> str:
    """Return the main metric of the latest evaluation as text."""
    metrics = run.series.evaluations.last.get("metrics") or {}
    best = run.series.evaluations.best
    name = best["name"] if best and best["name"] in metrics else next(iter(metrics), None)
    if name is None:
        return markup.UNKNOWN
    return f"{markup.metric(name, metrics[name])} {markup.metric_label(name)}"


def _evaluated(runs: Sequence[ShownRun]) -> list[str]:
    """Return the validation loss and the first run's main metric."""
    names = [best["name"] for shown in runs if (best := shown.run.series.evaluations.best)]
    metrics = [METRIC + name for name in dict.fromkeys(names)]
    return [VALIDATION, *metrics[:1]]


def _speed_up(run: Measured, first: Measured) -> str:
    found = pace.speed_up(run.pace, first.pace)
    return _TOO_SHORT if found is None else f"{markup.number(found, 3)} ×"


def _samples(run: Measured) -> str:
    seen = float(run.samples_at([run.num_steps])[0])
    return markup.count(seen if np.isfinite(seen) else None)


def _or_too_short(words: str) -> str:
    return _TOO_SHORT if words == markup.UNKNOWN else words


# Rows of a table: the title and a function of the run and the baseline (the first run).
ROWS: Mapping[str, tuple[str, Callable[[Measured, Measured], str]]] = {
    "loss": ("Training loss, last", lambda run, _: markup.loss(run.last_loss)),
    "validation": ("Validation", lambda run, _: validation_text(run)),
    "num_steps": ("Optimizer steps", lambda run, _: markup.count(run.num_steps)),
    "global_batch": ("Global batch", lambda run, _: markup.count(run.global_batch)),
    "samples": ("Samples trained on", lambda run, _: _samples(run)),
    "step_time": (
        "Time of a step, median",
        lambda run, _: markup.short_time(run.pace.step_time_s) if run.pace else _TOO_SHORT,
    ),
    "throughput": (
        "Samples per second, at the median step",
        lambda run, _: markup.number(run.pace.samples_per_s, 3) if run.pace else _TOO_SHORT,
    ),
    "speed_up": ("Speed-up", _speed_up),
    "memory": (
        "Memory of a rank, for model and training",
        lambda run, _: _or_too_short(markup.size(run.most_memory_bytes)),
    ),
    "took": ("Took", lambda run, _: markup.short_time(run.series.active_s())),
}
