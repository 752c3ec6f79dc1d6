"""The charts of a single number per step, one entry each: its column, and how it is drawn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trainers.contract.config import Config


@dataclass(frozen=True, kw_only=True)
class StepChart:
    """One chart below the loss.

    Attributes:
        column: of the step events, by its name in `series.STEP_FIELDS`.
        title: above the chart; `name` is shown in the hover text.
        empty: the placeholder before the first number.
        color: of the line, a number of the page's palette.
        hover_format, tick_format: as d3-format writes numbers; empty: Plotly's own.
        axis_title: beside the numbers; `{sample_unit}` stands for what one sample is.
        term: the glossary's, that explains the title; empty: none.
        is_sparse: most steps do not have the number.
        limit_setting: a setting of the run that the number is cut to, where it is set; drawn as a line.
    """

    column: str
    title: str
    name: str
    color: int
    hover_format: str
    tick_format: str = ""
    axis_title: str = ""
    empty: str = "Appears with the first steps."
    term: str = ""
    is_sparse: bool = False
    limit_setting: str = ""


STEP_CHARTS = (
    StepChart(
        column="throughput",
        title="Throughput, all ranks together",
        name="throughput",
        term="throughput",
        color=2,
        hover_format=",.0f",
        axis_title="{sample_unit} per second",
    ),
    StepChart(
        column="learning_rate",
        title="Learning rate",
        name="learning rate",
        term="learning rate",
        color=0,
        hover_format=".4~g",
        tick_format=".3~g",
    ),
    StepChart(
        column="grad_norm",
        title="Gradient norm",
        name="gradient norm",
        term="gradient norm",
        color=3,
        hover_format=".3~g",
        empty="How long the gradient is: appears with the first steps, about ten times a second.",
        is_sparse=True,
        limit_setting="max_grad_norm",
    ),
)


def columns(*, sparse: bool | None = None) -> tuple[str, ...]:
    """Return the columns that are drawn; only those that are sparse, or only those that are not."""
    return tuple(chart.column for chart in STEP_CHARTS if sparse is None or chart.is_sparse == sparse)


def of_a_run(sample_unit: str, config: Config) -> list[dict[str, Any]]:
    """Return the charts as the page draws them; `limit` is what the number is cut to in this run, or null."""
    return [
        {
            **asdict(chart),
            # Beside a chart there is room for "passages", not for "passages of 64 characters".
            "axis_title": chart.axis_title.replace("{sample_unit}", sample_unit.partition(" of ")[0]),
            "limit": getattr(config, chart.limit_setting) if chart.limit_setting else None,
        }
        for chart in STEP_CHARTS
    ]
