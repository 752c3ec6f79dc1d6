"""Charts of the lab report, as data for `assets/js/learn/report/charts.js`, and tables of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from ddp_gui.events.analysis import pace
from ddp_gui.events.tables import Smoothing, shown, shown_x, thin
from ddp_gui.learn.measures import RunNumbers
from ddp_gui.learn.report import markup
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured

Numbers = npt.NDArray[np.float64]

# Curves with one point per step.
STEP_CURVES = ("loss", "throughput")
VALIDATION = "validation_loss"
METRIC = "metric:"
AXES = {
    "step": "optimizer step",
    "samples": "samples trained on, all ranks together",
    "time": "seconds since the start",
}


@dataclass(frozen=True, kw_only=True)
class ChartCurve:
    """Points sorted by x; gaps are NaN."""

    x: Numbers
    y: Numbers

    def thinned(self, max_points: int) -> dict[str, Numbers]:
        """Return at most `max_points` rounded points, selected so that every peak and dip stays visible."""
        chosen = thin(self.x, self.y, max_points)
        return {"x": shown_x(self.x[chosen]), "y": shown(self.y[chosen])}

    def value_at(self, x: float) -> float | None:
        """Return the y value of the point nearest to x; None if there is none."""
        if len(self.x) == 0:
            return None
        nearest = int(np.argmin(np.abs(self.x - x)))
        value = float(self.y[nearest])
        return value if np.isfinite(value) else None


EMPTY = ChartCurve(x=np.empty(0), y=np.empty(0))


def curve_of(run: Measured, name: str, axis: str, smoothing: float = 0) -> ChartCurve:
    """Return a curve of a run; empty if it was not measured.

    Args:
        name: `loss`, `throughput`, `validation_loss` or `metric:NAME`.
        axis: one of `AXES`.
        smoothing: smoothing width in units of the axis; only for curves with one point per step.
    """
    is_per_step = name in STEP_CURVES
    table = run.series.steps if is_per_step else run.series.evaluation_table
    if name not in table.fields or table.length == 0:
        return EMPTY
    if is_per_step and smoothing > 1:
        unit: Smoothing = "samples" if axis == "samples" else "time" if axis == "time" else "step"
        y = run.series.smoothed(name, smoothing, unit, 0, table.length)
    else:
        y = table.column(name).astype(np.float64)
    steps = table.x("step")
    positions = run.samples_at(steps) if axis == "samples" else table.x("time" if axis == "time" else "step")
    x: Numbers = np.asarray(positions, np.float64)
    y = np.where(np.isfinite(y), y, np.nan)
    is_known = np.isfinite(x) if is_per_step else np.isfinite(x) & np.isfinite(y)
    # Keep x monotonic even if the clock was set back.
    x = np.maximum.accumulate(x[is_known]) if is_known.any() else x[is_known]
    return ChartCurve(x=x, y=y[is_known])


def curve_label(name: str) -> str:
    """Return a curve's display name."""
    if name == "loss":
        return "training loss"
    if name in STEP_CURVES:
        return name
    if name == VALIDATION:
        return "validation loss"
    return f"validation {markup.metric_label(name.removeprefix(METRIC))}"


NUM_COLORS = 7
DASHES = (None, "8 4", "2 3", "8 3 2 3", "14 5")


def line_sample(index: int) -> Html:
    """Return a short line. Colours and dashes have different periods, so that pairs rarely repeat."""
    color, dashes = f"var(--c{index % NUM_COLORS})", DASHES[index % len(DASHES)]
    path = tag("path", d="M1 5H39", class_="line", stroke=color, stroke_dasharray=dashes)
    return tag("svg", path, class_="sample", viewBox="0 0 40 10", aria_hidden="true")


DEFAULT_SMOOTHING = 20
_SMOOTHED_OVER = {"step": "steps", "samples": "samples", "time": "seconds"}
_TOO_SHORT = "too short to measure"


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """A run in a figure, with its display name and its index in the figure."""

    name: str
    index: int
    run: Measured

    def numbers(self) -> RunNumbers:
        """Return its measured numbers, for conditions."""
        return RunNumbers.of(self.name, self.run.info["state"], self.run.info["num_ranks"], self.run.series)


def standard_charts(runs: Sequence[ShownRun], max_points: int) -> Html | None:
    """Return charts of training loss, validation and throughput, if they were measured."""
    names = ["loss", *_validation_curves(runs), "throughput"]
    return chart_grid(
        [
            chart_of_curve(
                runs,
                name,
                "step",
                max_points,
                smoothing=DEFAULT_SMOOTHING,
                is_wide=name in ("loss", names[-1]),
            )
            for name in names
        ]
    )


def chart_grid(figures: Sequence[Html | None]) -> Html | None:
    """Arrange figures in a grid; None if there are none."""
    drawn = [figure for figure in figures if figure is not None]
    return tag("div", drawn, class_="pictures") if drawn else None


def chart_of_curve(
    runs: Sequence[ShownRun],
    name: str,
    axis: str,
    max_points: int,
    *,
    smoothing: float = 0,
    guess: ChartCurve | None = None,
    is_wide: bool = False,
    picture: Mapping[str, Any] | None = None,
) -> Html | None:
    """Draw one curve of all runs; None if no run has it.

    Args:
        guess: predicted curve, drawn below the other curves.
        picture: the lesson's picture, with its caption, marks and scale.
    """
    picture = picture or {}
    lines: list[dict[str, Any]] = []
    for shown_run in runs:
        curve = curve_of(shown_run.run, name, axis, smoothing)
        lines.append({"name": shown_run.name, "index": shown_run.index, **curve.thinned(max_points)})
    if not any(np.isfinite(line["y"]).any() for line in lines):
        return None
    title = curve_label(name)
    if name in STEP_CURVES and smoothing > 1:
        title += f", smoothed over {smoothing:,g} {_SMOOTHED_OVER[axis]}"
    title = title[:1].upper() + title[1:]
    guesses = [] if guess is None else [{"name": "my prediction", **guess.thinned(max_points)}]
    values = {
        "title": title,
        "curve": name,
        "axis": axis,
        "isLogarithmic": bool(picture.get("is_logarithmic")),
        "lines": lines,
        "guesses": guesses,
        "marks": picture.get("marks", ()),
    }
    ends = filter(None, [_describe_ends(name, line) for line in [*guesses, *lines]])
    return tag(
        "div",
        tag("p", inlines(picture["caption"]), class_="caption") if picture.get("caption") else None,
        class_="chart wide" if is_wide else "chart",
        role="group",
        aria_label=f"{title} over {AXES.get(axis, axis)}. {'; '.join(ends)}.",
        data_figure=orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode(),
    )


def _describe_ends(curve: str, line: Mapping[str, Any]) -> str:
    """Return the first and last values of a line as text, for users of screen readers."""
    values = line["y"][np.isfinite(line["y"])].tolist()
    if not values:
        return ""
    first, last = (
        markup.metric(curve.removeprefix(METRIC), value) if curve.startswith(METRIC) else markup.number(value)
        for value in (values[0], values[-1])
    )
    return f"{line['name']}: from {first} to {last}"


def numbers_table(runs: Sequence[ShownRun], names: Sequence[str], caption: Html | None = None) -> Html | None:
    """Return a table with one row per number and one column per run; None without runs."""
    known = [name for name in names if name in ROWS]
    if not runs or not known:
        return None
    heads = [joined([line_sample(shown.index), name_of(shown.name)]) for shown in runs]
    rows = []
    for name in known:
        title, format_cell = ROWS[name]
        cells = [tag("td", format_cell(shown.run, runs[0].run)) for shown in runs]
        rows.append([tag("th", title, scope="row"), cells])
    return tag(
        "figure",
        markup.table([None, *heads], rows, label="Measurements of each run"),
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


def _validation_curves(runs: Sequence[ShownRun]) -> list[str]:
    """Return the validation loss and the first run's main metric."""
    names = [best["name"] for shown in runs if (best := shown.run.series.evaluations.best)]
    metrics = [METRIC + name for name in dict.fromkeys(names)]
    return [VALIDATION, *metrics[:1]]


def _speed_up(run: Measured, first: Measured) -> str:
    ratio = pace.speed_up(run.pace, first.pace)
    return _TOO_SHORT if ratio is None else f"{markup.number(ratio, 3)} ×"


def _samples(run: Measured) -> str:
    num_samples = float(run.samples_at([run.num_steps])[0])
    return markup.count(num_samples if np.isfinite(num_samples) else None)


def _or_too_short(text: str) -> str:
    return _TOO_SHORT if text == markup.UNKNOWN else text


# Rows of a table, each with a title and a function of the run and the baseline (the first run).
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
        lambda run, _: _or_too_short(markup.size(run.max_memory_bytes)),
    ),
    "took": ("Took", lambda run, _: markup.short_time(run.series.active_s())),
}
