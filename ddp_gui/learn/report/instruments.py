"""Figures of a lesson that are not curves: recorded step, sample assignment, hashes, bars and waterfall.

They need no script, so that they can be printed, and match the figures on the page. Text is HTML; only shapes
are SVG, stretched to the available width, so that a figure stays readable on a phone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_gui.events.analysis import pace
from ddp_gui.events.series import RANK_PARTS
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
HELD = {"parameter_bytes": "weights", "gradient_bytes": "gradients", "optimizer_bytes": "optimizer state"}
COSTS = {
    "data": "loading data",
    "computing": "computing",
    "communicating": "communicating: all-reduce",
    "waiting": "waiting for other ranks",
}
PART_WORDS = {"both": "forward and backward", "other": "the rest of the step"}

Ranks = list[tuple[int, list[float]]]
Span = tuple[float, float, str]  # start and end as shares of the width, and a CSS class


def draw_picture(picture: Mapping[str, Any], runs: Sequence[ShownRun]) -> Html | None:
    """Draw a lesson's picture; None if it is a curve, a table of numbers, or a control."""
    caption = inlines(picture["caption"])
    if picture["bars"]:
        return _bars(picture["bars"], runs, caption)
    if picture["waterfall"] is not None:
        return _waterfall(runs, picture["waterfall"], caption)
    found = _INSTRUMENTS.get(picture["instrument"])
    if found is None:
        return None
    title, of_run = found
    wanted = [shown for shown in runs if picture["run"] in (None, shown.index)]
    names = [tag("p", line_sample(shown.index), name_of(shown.name), class_="whose") for shown in wanted]
    parts = [joined([name, of_run(shown.run)]) for name, shown in zip(names, wanted, strict=True)]
    return _figure(title, parts, caption)


def _figure(title: str, parts: Sequence[Html], caption: Html) -> Html:
    return tag(
        "figure",
        tag("figcaption", tag("strong", title)),
        parts,
        tag("p", caption, class_="caption") if caption else None,
        class_="instrument",
    )


def _row(label: Html | str, spans: Sequence[Span], value: str = "") -> Html:
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
        tag("td", value, class_="value"),
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
        "ul", [tag("li", key, words) for key, (_, words) in zip(keys, entries, strict=True)], class_="legend"
    )


def _missing(words: str) -> Html:
    return tag("p", words, class_="soft")


# Bars and the waterfall


def _bars(kind: str, runs: Sequence[ShownRun], caption: Html) -> Html:
    values_of, words, title = _BARS[kind]
    values = [(shown, values_of(shown.run)) for shown in runs]
    most = max((sum(parts) for _, ranks in values for _, parts in ranks), default=0.0) or 1.0
    rows: list[Html] = []
    for shown, ranks in values:
        name = [line_sample(shown.index), name_of(shown.name)]
        rows.append(tag("tr", tag("th", name, colspan=3, scope="rowgroup", class_="whose")))
        for rank, parts in ranks:
            ends = [sum(parts[: number + 1]) / most for number in range(len(parts))]
            classes = [f"held{number}" if len(parts) > 1 else "whole" for number in range(len(parts))]
            spans = list(zip([0.0, *ends[:-1]], ends, classes, strict=True))
            rows.append(_row(f"rank {rank}", spans, words(sum(parts))))
        if not ranks:
            rows.append(tag("tr", tag("td", "not measured", colspan=3, class_="soft")))
    legend = [_legend([(f"held{number}", each) for number, each in enumerate(HELD.values())])]
    return _figure(title, [*(legend if kind == "memory" else []), _table(rows)], caption)


def _held(run: Measured) -> Ranks:
    ranks = run.series.latest.get("ranks", {}).get("ranks", [])[:MAX_RANKS]
    found = [(rank["rank"], [rank.get(field) for field in HELD]) for rank in ranks]
    return [(rank, parts) for rank, parts in found if None not in parts]


def _waits(run: Measured) -> Ranks:
    at = list(RANK_PARTS).index("wait")
    found = []
    for each in pace.rank_history_of_run(run.series)[:MAX_RANKS]:
        known = [part[at] for part in each["slices"] if part[at] is not None]
        if known:
            found.append((each["rank"], [sum(known) / len(known)]))
    return found


_BARS: Mapping[str, tuple[Callable[[Measured], Ranks], Callable[[float | None], str], str]] = {
    "memory": (_held, markup.size, "What each rank holds, counted"),
    "wait": (_waits, markup.short_time, "How long each rank waits for the others in a step"),
}


def _waterfall(runs: Sequence[ShownRun], index: int, caption: Html) -> Html:
    by_index = {shown.index: shown for shown in runs}
    one, many = by_index.get(0), by_index.get(index)
    found = costs(one.run, many.run) if one is not None and many is not None else None
    if found is None or many is None:
        words = "Too few steps were sampled to divide them."
        return _figure("Why not N times as fast", [_missing(words)], caption)
    best, came = found["best"], found["came"]
    steps = [(words, found[name], "cost") for name, words in COSTS.items()]
    steps.append(("unexplained", found["unexplained"], "unexplained"))
    levels = [best]
    for _, cost, _ in steps:
        levels.append(levels[-1] - cost)
    widest = max(best, came, *levels)
    rows = [_row(f"{best:.3g} times as fast", [(0.0, best / widest, "whole")], f"{best:.3g} ×")]
    for number, (words, cost, kind) in enumerate(steps):
        low, high = sorted(max(0.0, level) / widest for level in levels[number : number + 2])
        sign, name = ("+", "gain") if cost < 0 else ("−", kind)
        rows.append(_row(words, [(low, high, name)], f"{sign} {abs(cost):.2f}"))
    rows.append(_row(tag("strong", "measured"), [(0.0, came / widest, "whole")], f"{came:.3g} ×"))
    return _figure(f"Why not N times as fast: {many.name}", [_table(rows)], caption)


def costs(one: Measured, many: Measured) -> dict[str, float] | None:
    """Divide the gap to an N-fold speed-up by its causes, as `assets/js/learn/bars.js` does.

    Returns:
        `best` and `came` (ideal and measured speed-up over the first run), and for each of `COSTS` and
        `unexplained` the speed-up that it costs; None if too little was sampled.
    """
    before, after = _parts_of(one), _parts_of(many)
    if before is None or after is None or one.pace is None or many.pace is None:
        return None
    if one.global_batch is None or many.global_batch is None:
        return None
    best = many.about["num_ranks"] / one.about["num_ranks"]
    # Factor by which a part would change if only the number of ranks had an effect.
    share = many.global_batch / one.global_batch / best
    step_s = many.pace.step_time_s
    found = {part: best * (after[part] - share * before[part]) / step_s for part in COSTS}
    came = many.pace.samples_per_s / one.pace.samples_per_s
    return {"best": best, "came": came, **found, "unexplained": best - came - sum(found.values())}


def _parts_of(run: Measured) -> dict[str, float] | None:
    """Return the seconds per cost in a step: the mean of the samples in the middle half of the steps."""
    history = pace.rank_history_of_run(run.series)
    slices = [dict(zip(RANK_PARTS, part, strict=True)) for rank in history for part in rank["slices"]]
    measured = [each for each in slices if each["forward"] is not None and each["backward"] is not None]
    if not measured:
        return None
    measured.sort(key=lambda each: each["step"])
    usual = measured[len(measured) // 4 : -(-3 * len(measured) // 4)]
    divided = [_divided(each, has_others=len(history) > 1) for each in usual]
    return {part: sum(each[part] for each in divided) / len(divided) for part in COSTS}


def _divided(part: Mapping[str, Any], *, has_others: bool) -> dict[str, float]:
    """Divide a step's time by cost. A single rank neither waits nor communicates."""
    waiting = (part["wait"] or 0.0) if has_others else 0.0
    # Exposed communication: the part of the all-reduce that was not hidden behind the backward pass.
    seen = waiting
    if has_others and part["all_reduce"] is not None:
        seen = max(waiting, part["all_reduce"] - (part["hidden"] or 0.0))
    return {
        "data": part["data"] or 0.0,
        "computing": part["forward"] + max(0.0, part["backward"] - seen) + (part["optimizer"] or 0.0),
        "communicating": seen - waiting,
        "waiting": waiting,
    }


# Instruments of "Look closer"


def _recorded_step(run: Measured) -> Html:
    directory = RunDirectory(Path(run.about["path"]))
    files = recordings.list_recordings(directory)
    if not files:
        return _missing("No step of this run was recorded.")
    try:
        recording = recordings.read(directory, files[-1].step)
    except (OSError, ValueError) as error:
        return _missing(explain(error))
    ranks = [(rank["rank"], rank["steps"][0]) for rank in recording["ranks"][:MAX_RANKS] if rank["steps"]]
    if not ranks:
        return _missing("The recording holds no step.")
    origin_s = min(step["began_s"] for _, step in ranks)
    length_s = max(max(step["ended_s"] for _, step in ranks) - origin_s, 1e-9)

    def span(began_s: float, ended_s: float, name: str) -> Span:
        low = (began_s - origin_s) / length_s
        return low, max((ended_s - origin_s) / length_s, low + 0.002), name

    rows = []
    for rank, step in ranks:
        computing = [span(began, ended, f"part-{name}") for name, began, ended in step["parts"]]
        talking = [
            span(each["began_s"], each["ended_s"], "part-reduce")
            for each in (*step["all_reduces"], *step["collectives"])
        ]
        rounds = [each for reduced in step["all_reduces"] for each in reduced["rounds"]]
        waiting = [span(written_s, met_s, "part-wait") for _, written_s, met_s, *_ in rounds]
        rows += [_row(f"rank {rank}", computing), _row("", [*talking, *waiting])]
    used = dict.fromkeys(name for _, step in ranks for name, *_ in step["parts"])
    legend = [(f"part-{name}", PART_WORDS.get(name, name)) for name in used]
    legend += [("part-reduce", "all-reduce"), ("part-wait", "waiting for the other ranks")]
    overlap = recording["numbers"]["overlap"]
    words = f"Step {recording['first_step']:,}, beginning to end: {markup.short_time(length_s)}."
    if overlap is not None:
        words += f" {overlap:.0%} of the time of the all-reduces was hidden behind computing."
    return joined([_legend(legend), _table(rows), tag("p", words, class_="soft")])


def _fingerprints(run: Measured) -> Html:
    found = run.series.fingerprints.shown()
    if found is None:
        return _missing("The ranks' weights were not compared.")
    newest = found["newest"][-MAX_HASH_COLUMNS:]
    heads = [tag("th", markup.count(each["step"]), scope="col") for each in newest]
    rows = []
    for rank in range(min(found["num_ranks"], MAX_RANKS)):
        cells = [_hash_cell(each["hashes"], rank) for each in newest]
        rows.append(tag("tr", tag("th", f"rank {rank}", scope="row"), cells))
    if found["is_identical"]:
        words = f"After step {found['step']:,} all replicas are identical, to the last bit."
    else:
        distance = max((each or 0.0 for each in newest[-1]["distances"]), default=0.0)
        words = (
            f"The replicas have differed since step {found['differ_since']:,}, at the end "
            f"by up to {distance:.2%} of the length of rank 0's weights."
        )
    head = tag("tr", tag("th", "after step", scope="col"), heads)
    table = tag("table", tag("thead", head), tag("tbody", rows))
    return joined(
        [
            tag(
                "div",
                table,
                class_="scroll",
                tabindex="0",
                role="group",
                aria_label="Hashes of the last steps",
            ),
            tag("p", f"{words} Equal letters in a column mean equal hashes.", class_="soft"),
        ]
    )


def _hash_cell(hashes: Sequence[str], rank: int) -> Html:
    if rank >= len(hashes):  # the run was resumed with more ranks
        return tag("td", "–")
    group = list(dict.fromkeys(hashes)).index(hashes[rank])
    letter = chr(ord("a") + group % 26)
    return tag(
        "td", tag("b", letter), " ", tag("code", hashes[rank][:SHORT_HASH]), class_=f"hash{min(group, 3)}"
    )


def _who_saw_what(run: Measured) -> Html:
    sampling = sampling_of(run.config, run.series.plans, run.about["num_replicas"])
    if sampling is None:
        return _missing("How the samples are divided among the ranks is not known.")
    if "sample" not in samples.picture_kinds(sampling):
        return _missing("There are too many samples to draw.")
    found = samples.sample_picture(sampling, 0, "sample", 0, sampling.num_samples)
    num_columns, num_rows, num_groups = (found[name]["number"] for name in ("columns", "rows", "ranks"))
    width = UNITS / num_columns
    cells: dict[str, list[str]] = {}
    for row, counts in enumerate(found["counts"]):
        for column in range(num_columns):
            seen = [group for group in range(num_groups) if counts[column * num_groups + group]]
            if seen:
                name = f"seen{seen[0] % NUM_COLORS}" if len(seen) == 1 else "several"
                cells.setdefault(name, []).append(f"M{column * width:.1f} {row}h{width:.2f}v1h-{width:.2f}z")
    shapes = [tag("path", d="".join(each), class_=f"bar {name}") for name, each in sorted(cells.items())]
    groups, steps = found["ranks"], found["rows"]
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
    fewest, most = times["fewest"], times["most"]
    often = f"{most} time{'' if most == 1 else 's'}" if fewest == most else f"{fewest} to {most} times"
    words = (
        f"From left to right the {sampling.num_samples:,} training samples, from top to bottom steps "
        f"{steps['first']:,} to {steps['last']:,}, the first epoch. Each "
        f"sample is seen {often} in it."
    )
    return joined(
        [_legend(legend), _svg(shapes, num_rows, "grid-of-samples"), tag("p", words, class_="soft")]
    )


_INSTRUMENTS: Mapping[str, tuple[str, Callable[[Measured], Html]]] = {
    "step-theatre": ("A recorded step, part by part", _recorded_step),
    "fingerprints": ("Hashes of each rank's weights", _fingerprints),
    "who-saw-what": ("Which rank saw which sample", _who_saw_what),
}
