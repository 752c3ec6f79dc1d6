"""Figures of a lesson that are not curves: recorded step, sample assignment, hashes, bars and waterfall.

Text is HTML, and only shapes are SVG, stretched to the width, so that figures are readable on a phone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from ddp_gui.events.analysis import pace
from ddp_gui.learn.report import markup
from ddp_gui.learn.report.charts import NUM_COLORS, ShownRun, line_sample
from ddp_gui.learn.report.markup import Html, inlines, joined, name_of, tag
from ddp_gui.learn.report.measured import Measured
from ddp_gui.run import samples
from ddp_gui.run.samples import sampling_of
from trainers.contract import recordings
from trainers.contract.rundir import RunDirectory
from trainers.machine.os_errors import explain

UNITS = 1000
MAX_RANKS = 8
MAX_HASH_COLUMNS = 8
SHORT_HASH = 4
PART_LABELS = {"both": "forward and backward", "other": "the rest of the step"}

Span = tuple[float, float, str]  # start and end as shares of the width, and a CSS class


def draw_picture(picture: Mapping[str, Any], runs: Sequence[ShownRun]) -> Html | None:
    """Draw a lesson's picture; None if it is a curve, a table of numbers, or a control."""
    caption = inlines(picture["caption"])
    if picture["bars"] or picture["waterfall"] is not None:
        return _bars(picture, runs) if runs else None
    instrument = _INSTRUMENTS.get(picture["instrument"])
    if instrument is None:
        return None
    title, draw = instrument
    selected = [shown for shown in runs if picture["run"] in (None, shown.index)]
    names = [tag("p", line_sample(shown.index), name_of(shown.name), class_="whose") for shown in selected]
    parts = [joined([name, draw(shown.run)]) for name, shown in zip(names, selected, strict=True)]
    return _figure(title, parts, caption)


def _figure(title: str, parts: Sequence[Html], caption: Html) -> Html:
    return tag(
        "figure",
        tag("figcaption", tag("strong", title)),
        parts,
        tag("p", caption, class_="caption") if caption else None,
        class_="instrument",
    )


def _row(label: str, spans: Sequence[Span]) -> Html:
    shapes = [
        tag(
            "rect",
            x=round(low * UNITS, 1),
            y=0,
            width=round(max(0.0, high - low) * UNITS, 1),
            height=10,
            class_=f"bar {name}",
        )
        for low, high, name in spans
    ]
    return tag(
        "tr",
        tag("th", label, scope="row"),
        tag("td", _svg(shapes, 10, "track")),
    )


def _svg(shapes: Sequence[Html], height: float, name: str) -> Html:
    box = f"0 0 {UNITS} {height:g}"
    return tag("svg", shapes, viewBox=box, preserveAspectRatio="none", class_=name, aria_hidden="true")


def _table(rows: Sequence[Html]) -> Html:
    return tag("table", tag("tbody", rows), class_="bars")


def _legend(entries: Sequence[tuple[str, str]]) -> Html:
    keys = [
        tag("svg", tag("rect", width=12, height=12, class_=f"bar {name}"), class_="key", aria_hidden="true")
        for name, _ in entries
    ]
    return tag(
        "ul", [tag("li", key, label) for key, (_, label) in zip(keys, entries, strict=True)], class_="legend"
    )


def _missing(message: str) -> Html:
    return tag("p", message, class_="soft")


def _bars(picture: Mapping[str, Any], runs: Sequence[ShownRun]) -> Html:
    """Return an element for bars or a waterfall, which the script draws as on the page of a lesson."""
    known = {shown.index: shown for shown in runs}
    values = {
        "picture": {name: picture[name] for name in ("bars", "waterfall", "caption")},
        # Keep a gap for a deleted run, because pictures refer to runs by number.
        "runs": [
            _measured(known[index], MAX_RANKS if picture["bars"] else None)
            if index in known
            else {"head": None}
            for index in range(max(known) + 1)
        ],
    }
    caption = tag("p", inlines(picture["caption"]), class_="caption") if picture["caption"] else None
    return tag("div", caption, class_="instrument", data_bars=orjson.dumps(values).decode())


def _measured(shown: ShownRun, max_ranks: int | None) -> dict[str, Any]:
    """Return the values of a run for the page's script; a waterfall averages over all ranks."""
    run = shown.run
    return {
        "name": shown.name,
        "index": shown.index,
        "isOver": True,
        "head": {
            "num_ranks": run.info["num_ranks"],
            "global_batch": run.global_batch,
            "pace": None if run.pace is None else asdict(run.pace),
        },
        "ranks": run.series.latest.get("ranks", {}).get("ranks", [])[:max_ranks],
        "history": pace.rank_history_of_run(run.series)[:max_ranks],
    }


# Instruments of "Look closer"


def _recorded_step(run: Measured) -> Html:
    directory = RunDirectory(Path(run.info["path"]))
    files = recordings.list_recordings(directory)
    if not files:
        return _missing("No step of this run was recorded.")
    try:
        recording = recordings.read(directory, files[-1].step)
    except (OSError, ValueError) as error:
        return _missing(explain(error))
    ranks = [(rank["rank"], rank["steps"][0]) for rank in recording["ranks"][:MAX_RANKS] if rank["steps"]]
    if not ranks:
        return _missing("The recording contains no step.")
    origin_s = min(step["began_s"] for _, step in ranks)
    length_s = max(max(step["ended_s"] for _, step in ranks) - origin_s, 1e-9)

    def span(began_s: float, ended_s: float, name: str) -> Span:
        low = (began_s - origin_s) / length_s
        return low, max((ended_s - origin_s) / length_s, low + 0.002), name

    rows = []
    for rank, step in ranks:
        computing = [span(began, ended, f"part-{name}") for name, began, ended in step["parts"]]
        communicating = [
            span(item["began_s"], item["ended_s"], "part-reduce")
            for item in (*step["all_reduces"], *step["collectives"])
        ]
        rounds = [item for reduced in step["all_reduces"] for item in reduced["rounds"]]
        waiting = [span(written_s, met_s, "part-wait") for _, written_s, met_s, *_ in rounds]
        rows += [_row(f"rank {rank}", computing), _row("", [*communicating, *waiting])]
    part_names = dict.fromkeys(name for _, step in ranks for name, *_ in step["parts"])
    legend = [(f"part-{name}", PART_LABELS.get(name, name)) for name in part_names]
    legend += [("part-reduce", "all-reduce"), ("part-wait", "waiting for the other ranks")]
    overlap = recording["numbers"]["overlap"]
    text = f"Duration of step {recording['first_step']:,}: {markup.short_time(length_s)}."
    if overlap is not None:
        text += f" {overlap:.0%} of the time of the all-reduces was hidden behind computing."
    return joined([_legend(legend), _table(rows), tag("p", text, class_="soft")])


def _fingerprints(run: Measured) -> Html:
    comparison = run.series.fingerprints.shown()
    if comparison is None:
        return _missing("The ranks' weights were not compared.")
    newest = comparison["newest"][-MAX_HASH_COLUMNS:]
    heads = ["after step", *(markup.count(each["step"]) for each in newest)]
    rows = [
        [tag("th", f"rank {rank}", scope="row"), [_hash_cell(each["hashes"], rank) for each in newest]]
        for rank in range(min(comparison["num_ranks"], MAX_RANKS))
    ]
    if comparison["is_identical"]:
        text = f"After step {comparison['step']:,} all replicas are identical, to the last bit."
    else:
        distance = max((each or 0.0 for each in newest[-1]["distances"]), default=0.0)
        text = (
            f"The replicas have differed since step {comparison['differ_since']:,}, at the end "
            f"by up to {distance:.2%} of the length of rank 0's weights."
        )
    text += " Equal letters in a column mean equal hashes."
    return joined(
        [markup.table(heads, rows, label="Hashes of the last steps"), tag("p", text, class_="soft")]
    )


def _hash_cell(hashes: Sequence[str], rank: int) -> Html:
    if rank >= len(hashes):  # the run was resumed with more ranks
        return tag("td", "–")
    group = list(dict.fromkeys(hashes)).index(hashes[rank])
    letter = chr(ord("a") + group % 26)
    return tag(
        "td", tag("b", letter), " ", tag("code", hashes[rank][:SHORT_HASH]), class_=f"hash{min(group, 3)}"
    )


def _sample_assignment(run: Measured) -> Html:
    sampling = sampling_of(run.config, run.series.plans, run.info["num_replicas"])
    if sampling is None:
        return _missing("The distribution of the samples over the ranks is unknown.")
    if "sample" not in samples.picture_kinds(sampling):
        return _missing("There are too many samples to draw.")
    figure = samples.sample_picture(sampling, 0, "sample", 0, sampling.num_samples)
    num_columns, num_rows, num_groups = (figure[name]["number"] for name in ("columns", "rows", "ranks"))
    width = UNITS / num_columns
    cells: dict[str, list[str]] = {}
    for row, counts in enumerate(figure["counts"]):
        for column in range(num_columns):
            seen_by = [group for group in range(num_groups) if counts[column * num_groups + group]]
            if seen_by:
                name = f"seen{seen_by[0] % NUM_COLORS}" if len(seen_by) == 1 else "several"
                cells.setdefault(name, []).append(f"M{column * width:.1f} {row}h{width:.2f}v1h-{width:.2f}z")
    shapes = [tag("path", d="".join(each), class_=f"bar {name}") for name, each in sorted(cells.items())]
    groups, steps = figure["ranks"], figure["rows"]
    legend = []
    for number in range(num_groups):
        first = groups["first"] + number * groups["size"]
        last = min(first + groups["size"] - 1, groups["last"])
        legend.append(
            (f"seen{number % NUM_COLORS}", f"rank {first}" if first == last else f"ranks {first} to {last}")
        )
    if num_groups > 1:
        legend.append(("several", "several ranks"))
    times = samples.times_seen(sampling, 0)
    min_times, max_times = times["fewest"], times["most"]
    frequency = (
        f"{max_times} time{'' if max_times == 1 else 's'}"
        if min_times == max_times
        else f"{min_times} to {max_times} times"
    )
    text = (
        f"From left to right: the {sampling.num_samples:,} training samples. From top to bottom: steps "
        f"{steps['first']:,} to {steps['last']:,}, which are the first epoch. Each sample is used "
        f"{frequency} in this epoch."
    )
    return joined([_legend(legend), _svg(shapes, num_rows, "grid-of-samples"), tag("p", text, class_="soft")])


_INSTRUMENTS: Mapping[str, tuple[str, Callable[[Measured], Html]]] = {
    "step-theatre": ("A recorded step, part by part", _recorded_step),
    "fingerprints": ("Hashes of each rank's weights", _fingerprints),
    "who-saw-what": ("Which rank trained on which sample", _sample_assignment),
}
