"""The pictures of a lesson or of some runs: charts of their curves, and tables of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddp_gui.events.analysis import pace as pace_of
from ddp_gui.learn.report import chart as chart_module
from ddp_gui.learn.report import curves, number_words
from ddp_gui.learn.report.chart import Chart, Line, sample
from ddp_gui.learn.report.curves import Curve
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured

USUAL_SMOOTHING = 20
_SMOOTHED_OVER = {"step": "steps", "samples": "samples", "time": "seconds"}
_TOO_SHORT = "too short to measure"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run in a picture: what it is called there, and its number in it."""

    name: str
    index: int
    run: Measured


def usual(runs: Sequence[Shown], max_points: int, without: Sequence[str] = ()) -> Html:
    """Return charts of training loss, validation and throughput, of what was measured."""

    def charts(*names: str, is_wide: bool = False) -> list[Html | None]:
        wanted = [name for name in names if name not in without]
        return [
            of_curve(runs, name, "step", max_points, smoothing=USUAL_SMOOTHING, is_wide=is_wide)
            for name in wanted
        ]

    return joined([grid(charts("loss", is_wide=True)), grid(charts(*_evaluated(runs), "throughput"), "more")])


def grid(figures: Sequence[Html | None], more: str = "") -> Html | None:
    """Return figures beside each other; None where there is none."""
    found = [each for each in figures if each is not None]
    return tag("div", found, class_=f"pictures {more}".strip()) if found else None


def of_curve(
    runs: Sequence[Shown],
    name: str,
    axis: str,
    max_points: int,
    *,
    smoothing: float = 0,
    guess: Curve | None = None,
    is_wide: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Html | None:
    """Return the chart of one curve of all runs; None where none has it.

    Args:
        guess: a predicted curve, drawn below the others.
        about: the lesson's picture: its caption, marks and scale.
    """
    about = about or {}
    is_of_steps = name in curves.OF_STEPS
    lines = [Line(name="my prediction", index=None, curve=guess)] if guess is not None else []
    lines += [
        Line(
            name=shown.name,
            index=shown.index,
            curve=curves.curve_of(shown.run, name, axis, smoothing),
            has_dots=not is_of_steps,
        )
        for shown in runs
    ]
    words = curves.words_of(name)
    is_smoothed = is_of_steps and smoothing > 1
    return chart_module.drawn(
        Chart(
            title=f"{words}, smoothed over {smoothing:,g} {_SMOOTHED_OVER[axis]}" if is_smoothed else words,
            x_words=curves.AXES.get(axis, axis),
            y_words=curves.axis_words_of(name),
            lines=lines,
            is_logarithmic=bool(about.get("is_logarithmic")),
            is_share=curves.is_share(name),
            from_zero=name == "throughput",
            is_wide=is_wide,
            marks=[(mark["x"], mark["words"]) for mark in about.get("marks", ())],
            caption=inlines(about["caption"]) if about.get("caption") else None,
        ),
        max_points,
    )


def table(runs: Sequence[Shown], names: Sequence[str], caption: Html | None = None) -> Html | None:
    """Return a table of numbers: a row a number, a column a run; None where there is no run."""
    known = [name for name in names if name in ROWS]
    if not runs or not known:
        return None
    heads = [tag("th", sample(shown.index), name_of(shown.name), scope="col") for shown in runs]
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
            aria_label="What was measured of each run",
        ),
        tag("p", caption, class_="caption") if caption else None,
        class_="numbers",
    )


def validation_words(run: Measured) -> str:
    """Return the newest evaluation's main metric in words."""
    metrics = run.series.evaluations.last.get("metrics") or {}
    best = run.series.evaluations.best
    name = best["name"] if best and best["name"] in metrics else next(iter(metrics), None)
    if name is None:
        return number_words.UNKNOWN
    return f"{number_words.metric(name, metrics[name])} {number_words.metric_label(name)}"


def _evaluated(runs: Sequence[Shown]) -> list[str]:
    """Return the validation loss, and the metric that most runs are judged by."""
    names = [best["name"] for shown in runs if (best := shown.run.series.evaluations.best)]
    metrics = [curves.METRIC + name for name in dict.fromkeys(names)]
    return [curves.VALIDATION, *metrics[:1]]


def _speed_up(run: Measured, first: Measured) -> str:
    found = pace_of.speed_up(run.pace, first.pace)
    return _TOO_SHORT if found is None else f"{number_words.number(found, 3)} ×"


def _samples(run: Measured) -> str:
    seen = float(run.samples_at([run.num_steps])[0])
    return number_words.count(seen if np.isfinite(seen) else None)


def _or_too_short(words: str) -> str:
    return _TOO_SHORT if words == number_words.UNKNOWN else words


# What can be a row of a table: its title, and what it says of a run; the first run is for comparison.
ROWS: Mapping[str, tuple[str, Callable[[Measured, Measured], str]]] = {
    "loss": ("Training loss, last", lambda run, _: number_words.loss(run.last_loss)),
    "validation": ("Validation", lambda run, _: validation_words(run)),
    "num_steps": ("Optimizer steps", lambda run, _: number_words.count(run.num_steps)),
    "global_batch": ("Global batch", lambda run, _: number_words.count(run.global_batch)),
    "samples": ("Samples trained with", lambda run, _: _samples(run)),
    "step_time": (
        "Time of a step, median",
        lambda run, _: number_words.short_time(run.pace.step_time_s) if run.pace else _TOO_SHORT,
    ),
    "throughput": (
        "Samples per second, at the median step",
        lambda run, _: number_words.number(run.pace.samples_per_s, 3) if run.pace else _TOO_SHORT,
    ),
    "speed_up": ("Speed-up", _speed_up),
    "memory": (
        "Memory of a rank, for model and training",
        lambda run, _: _or_too_short(number_words.size(run.most_memory_bytes)),
    ),
    "took": ("Took", lambda run, _: number_words.short_time(run.series.active_s())),
}
