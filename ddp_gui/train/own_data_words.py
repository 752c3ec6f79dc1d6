"""What the first page says of a person's own data, as HTML; every text in it is escaped."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_gui.http.visible import as_html, visible
from ddp_gui.plan.own_data import Inspection, problem_in_words
from ddp_gui.train import suggestion
from ddp_gui.train.words import install_button
from trainers.contract.config.data import COLUMN_KINDS

MAX_PROBLEMS_SHOWN = 20
MAX_ROWS_SHOWN = 8
MAX_COLUMNS_SHOWN = 8
MAX_CLASSES_SHOWN = 12
MAX_CELL = 60
MAX_ACTION = 90
MAX_DECISION = 300
MAX_DECISIONS_SHOWN = 100
MUCH = 0.05  # of the samples: leaving out more says how many

TO_BE_PREDICTED = " <small>to be predicted</small>"
NOT_INSPECTED = (
    '<div class="ddp-own"><p>Give a path on this machine, or upload a zip of images in class folders, '
    "a table (CSV, Excel, Parquet, JSON Lines) or a text. What it was taken for is then shown here, before "
    "anything is trained.</p></div>"
)
_BESIDE_START = '<div class="ddp-problems" role="group" aria-label="This cannot be started"><ul>{}</ul></div>'
NOT_YET = _BESIDE_START.format(
    '<li class="ddp-missing" data-field="data_path"><span class="ddp-not-inspected">Your data is '
    "not inspected yet. That happens when you leave the field of its path, or press “Inspect”.</span>"
    '<span class="ddp-being-inspected">Your data is being inspected…</span></li>'
)
# No span: the field is marked without words, which stand below it in full.
_FAULTY = _BESIDE_START.format(
    '<li class="ddp-wrong" data-field="data_path">'
    '<button type="button" data-go-to="data_path">{}</button>: '
    "the data cannot be used as it is. What is wrong is listed there.</li>"
)


def faulty(label: str) -> str:
    """Say beside Start that data has faults, and lead to the field of its path, which has this label."""
    return _FAULTY.format(as_html(label))


def failed(error: Exception) -> str:
    """Say why data could not be inspected."""
    return f'<div class="ddp-own"><p class="ddp-fatal" role="alert">{as_html(error)}</p></div>'


def lowered_batch(asked: int, lowered: int, most: int) -> str:
    """Say that the batch was lowered, and why."""
    return (
        f"The batch was lowered from {asked:,} to {lowered:,}: each rank has only {most:,} training samples."
    )


def own_data(inspection: Inspection, note: str = "", *, may_install: bool = False) -> str:
    """Show what was seen of a person's data: what it was taken for, its faults, a preview.

    Args:
        may_install: the current user may install packages.
    """

    def kind(problem: Mapping[str, Any]) -> str:
        return "ddp-fatal" if problem["is_fatal"] else "ddp-harmless"

    parts = [f"<p>{_taken_for(inspection)}</p>"]
    if note:
        parts.append(f"<p>{as_html(note)}</p>")
    if inspection.problems:
        lines = "".join(
            f'<li class="{kind(problem)}">{as_html(problem_in_words(problem))} {_suggested(problem)}'
            f"{install_button(problem['package']) if may_install and problem.get('package') else ''}</li>"
            for problem in inspection.problems[:MAX_PROBLEMS_SHOWN]
        )
        more = inspection.num_problems - min(len(inspection.problems), MAX_PROBLEMS_SHOWN)
        rest = f"<li>and {more:,} more</li>" if more > 0 else ""
        parts.append(f'<ul class="ddp-faults">{lines}{rest}</ul>{_leave_out(inspection)}')
    parts += [
        _pictures(inspection.preview),
        _decisions(inspection),
        _rows(inspection.preview, inspection.label_column),
        _counts(inspection.preview),
        _text(inspection.preview),
    ]
    parts.append(_measures(inspection))
    return f'<div class="ddp-own">{"".join(parts)}</div>'


def _taken_for(inspection: Inspection) -> str:
    if inspection.task is None:
        return "<b>This data cannot be used as it is.</b>"
    task = f"<b>{as_html(inspection.task.replace('_', ' '))}</b>"
    if any(problem["is_fatal"] for problem in inspection.problems):
        return f"Recognised as {task}. Before it can be used, mend this:"
    return f"Recognised as {task}. {_sizes(inspection)}"


def _leave_out(inspection: Inspection) -> str:
    """Return the button that leaves out all unreadable samples, where that is a way."""
    num = inspection.num_to_leave_out
    if not num:
        return ""
    total = inspection.preview.get("num_rows") or inspection.preview.get("num_images") or 0
    # A row of a table may have faults in several columns, each of which is counted.
    is_sure = inspection.kind == "images" or len(inspection.problems) == 1
    if num > MUCH * total > 0:
        words = f"Leave out {'' if is_sure else 'up to '}{num:,} of {total:,} samples"
        return suggestion.button({"skip_unreadable": True}, words)
    which = f"these {num:,}" if num > 1 else "this one"
    words = f"Leave {which} out" if is_sure else "Leave these rows out"
    return suggestion.button({"skip_unreadable": True}, words)


def _suggested(problem: Mapping[str, Any]) -> str:
    """Return the button that applies what helps against a problem, if anything is known to."""
    values = dict(problem.get("suggested", {}))
    if not values:
        return ""
    words = ", ".join(_value_in_words(name, str(value)) for name, value in values.items())
    return suggestion.button(values, str(problem.get("action", ""))[:MAX_ACTION] or f"Use {words[:MAX_CELL]}")


def _value_in_words(field: str, value: str) -> str:
    if field == "data_path":
        return value.rpartition("/")[2]
    return value.replace("_", " ") if field == "data_task" else value or "the column found automatically"


def _sizes(inspection: Inspection) -> str:
    if inspection.dataset is None:
        return ""
    about, unit = inspection.dataset, as_html(inspection.dataset.sample_unit)
    return f"{about.num_train:,} {unit} to train, {about.num_validation:,} to validate."


def _pictures(preview: Mapping[str, Any]) -> str:
    figures = []
    for item in preview.get("thumbnails", []):
        # A bitmap made of the numbers: nothing of the file itself reaches the browser.
        source = _bitmap(item)
        name = html.escape(visible(f"{item['class']}: {item['name']}"[:MAX_CELL]))
        figures.append(f'<figure><img src="{source}" alt="{name}"><figcaption>{name}</figcaption></figure>')
    return f'<div class="ddp-thumbnails">{"".join(figures)}</div>' if figures else ""


def _bitmap(item: Mapping[str, Any]) -> str:
    """Return a data address of a 24-bit BMP of an item's base64 pixels."""
    height, width, channels = int(item["height"]), int(item["width"]), int(item["channels"])
    pixels = base64.b64decode(item["pixels"])
    padding = b"\0" * (-3 * width % 4)
    rows = []
    for row in reversed(range(height)):
        line = pixels[row * width * channels : (row + 1) * width * channels]
        colours = (
            b"".join(bytes((grey,)) * 3 for grey in line)
            if channels == 1
            else b"".join(line[at : at + 3][::-1] for at in range(0, len(line), 3))
        )
        rows.append(colours + padding)
    body = b"".join(rows)
    header = b"BM" + (54 + len(body)).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    header += (40).to_bytes(4, "little") + width.to_bytes(4, "little") + height.to_bytes(4, "little")
    header += (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24)
    return "data:image/bmp;base64," + base64.b64encode(header + body).decode("ascii")


def _decisions(inspection: Inspection) -> str:
    """Show what each column holds, in one line each, with a choice that overrides it."""
    columns = [each for each in inspection.columns if each.get("decision")]
    if not columns:
        return ""
    lines = []
    for each in columns[:MAX_DECISIONS_SHOWN]:
        name = str(each["name"])
        is_label = name == inspection.label_column
        what = " (to be predicted)" if is_label else "" if each.get("is_used") else " (not used)"
        kind = "ddp-unsure" if each.get("confidence") != "high" else ""
        lines.append(
            f'<li class="{kind}"><span><b>{_cell(name)}</b>{what}: '
            f"{as_html(str(each['decision'])[:MAX_DECISION])}</span>"
            f"{_kinds(name, is_chosen=bool(each.get('is_chosen')))}</li>"
        )
    more = f"<li>and {len(columns) - len(lines):,} more</li>" if len(columns) > len(lines) else ""
    return f'<ul class="ddp-decisions" aria-label="What each column holds">{"".join(lines)}{more}</ul>'


def _kinds(name: str, *, is_chosen: bool) -> str:
    """Return a choice of what a column holds; its options are suggestions."""
    options = []
    for kind in (None, *COLUMN_KINDS):
        values = {"data_reading": {"columns": {name: kind}}}
        sent = html.escape(json.dumps(values), quote=True)
        words = ("read automatically" if is_chosen else "change…") if kind is None else kind
        options.append(f'<option data-values="{sent}">{as_html(words)}</option>')
    label = html.escape(visible(f"What {name[:MAX_CELL]} holds"), quote=True)
    return f'<select class="ddp-suggestion" aria-label="{label}">{"".join(options)}</select>'


def _rows(preview: Mapping[str, Any], label: str | None) -> str:
    """Show the first rows as written and, where that differs, as read; the label is always among them."""
    rows = preview.get("rows", [])
    if not rows:
        return ""
    names = [str(name) for name in preview.get("header", [])]
    shown = list(range(len(names)))[:MAX_COLUMNS_SHOWN]
    place = names.index(label) if label in names else None
    if place is not None and place not in shown:
        shown[-1] = place
    head = "".join(
        f'<th scope="col">{_cell(names[column])}{TO_BE_PREDICTED if column == place else ""}</th>'
        for column in shown
    )
    read = [*preview.get("read_rows", []), *[[]] * len(rows)]
    body = "".join(
        f"<tr>{''.join(_written_and_read(row, as_read, column) for column in shown)}</tr>"
        for row, as_read in zip(rows[:MAX_ROWS_SHOWN], read, strict=False)
    )
    hidden = len(names) - len(shown)
    more = f"<p>{hidden:,} more column{'s' if hidden > 1 else ''}.</p>" if hidden else ""
    return (
        '<div class="ddp-rows" tabindex="0" role="region" aria-label="The first rows of your table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _written_and_read(row: Sequence[Any], read: Sequence[Any], column: int) -> str:
    """Return a cell as it is written, with what is read from it below where that is something else."""
    written = str(row[column]) if column < len(row) and row[column] is not None else ""
    value = str(read[column]) if column < len(read) else written
    is_same = value in ("", written) or _is_same_number(value, written)
    if written and value == "" and column < len(read) and any(read):
        return f'<td class="ddp-not-read">{_cell(written)}</td>'
    return f"<td>{_cell(written)}{'' if is_same else f'<small>→ {_cell(value)}</small>'}</td>"


def _is_same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _counts(preview: Mapping[str, Any]) -> str:
    counts = preview.get("class_counts", {})
    if not counts:
        return ""
    shown = [f"{as_html(str(name)[:MAX_CELL])} {count:,}" for name, count in counts.items()]
    more = f", and {len(shown) - MAX_CLASSES_SHOWN:,} more" if len(shown) > MAX_CLASSES_SHOWN else ""
    return f"<p>{len(shown):,} classes: {', '.join(shown[:MAX_CLASSES_SHOWN])}{more}.</p>"


def _measures(inspection: Inspection) -> str:
    """Say how many and how long: what decides on batch, sequence length and model."""
    preview, said = inspection.preview, []
    if shape := preview.get("shape"):
        channels, height, width = shape
        said.append(
            f"Every image becomes {width} × {height} pixels, {'grey' if channels == 1 else 'in colour'}."
        )
    if rows := preview.get("num_rows"):
        label = (
            f"; to be predicted: <b>{_cell(inspection.label_column)}</b>" if inspection.label_column else ""
        )
        said.append(f"{rows:,} rows{label}.")
    if target := preview.get("target"):
        said.append(
            f"It goes from {target['min']:.4g} to {target['max']:.4g}, median {target['median']:.4g}."
        )
    if words := preview.get("num_words"):
        said.append(
            f"Texts of {words['shortest']:,} to {words['longest']:,} words, half of them at most "
            f"{words['median']:,}."
        )
    if characters := preview.get("num_characters"):
        said.append(f"{characters:,} characters, {preview['num_distinct']:,} different ones.")
    return f"<p>{' '.join(said)}</p>" if said else ""


def _text(preview: Mapping[str, Any]) -> str:
    text = preview.get("text")
    return f"<blockquote>{as_html(text)}</blockquote>" if text else ""


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return as_html(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")
