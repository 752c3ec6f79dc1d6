"""The form's section for own data: path, preview and problems."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gradio as gr
from PIL import Image  # Gradio also needs Pillow

from ddp_gui.auth.rights import current_user
from ddp_gui.background.workers import CLICKS
from ddp_gui.gradio_routes.uploads import KINDS, Uploads
from ddp_gui.http.shell import as_html, visible
from ddp_gui.operations import as_current_user, make_escaped_error
from ddp_gui.plan import recipe
from ddp_gui.plan.own_data import (
    FaultyDataError,
    Inspection,
    InspectionError,
    NotInspectedError,
    problem_line,
)
from ddp_gui.train import fill_in
from ddp_gui.train.api import Api
from ddp_gui.train.choices import BESIDE_PREVIEW, install_button
from ddp_gui.train.form import Form
from trainers.contract.config import ConfigError
from trainers.contract.config.sections import COLUMN_KINDS
from trainers.machine.os_errors import explain

MAX_PROBLEMS_SHOWN = 20
MAX_ROWS_SHOWN = 8
MAX_COLUMNS_SHOWN = 8
MAX_CLASSES_SHOWN = 12
MAX_CELL = 60
MAX_ACTION = 90
MAX_DECISION = 300
MAX_DECISIONS_SHOWN = 100
LARGE_SHARE = 0.05  # if more than this share of the samples is excluded, the button shows the numbers

TO_BE_PREDICTED = " <small>to be predicted</small>"
NOT_INSPECTED = (
    '<div class="ddp-own"><p>Enter a path on this machine, or upload a zip of images in class folders, '
    "a table (CSV, Excel, Parquet, JSON Lines) or a text. Before training, the page shows how it reads your "
    "data.</p></div>"
)
_NEAR_START = '<div class="ddp-problems" role="group" aria-label="This cannot be started"><ul>{}</ul></div>'
NOT_INSPECTED_NOTE = _NEAR_START.format(
    '<li class="ddp-missing" data-field="data_path"><span class="ddp-not-inspected">Your data is '
    "not inspected yet. This happens when you leave the field of its path, or press “Inspect”.</span>"
    '<span class="ddp-being-inspected">Your data is being inspected…</span></li>'
)
# Without a <span>, problems.js marks the field but adds no text: the full text is already below the field.
_DATA_PROBLEM_NOTE = _NEAR_START.format(
    '<li class="ddp-wrong" data-field="data_path">'
    '<button type="button" data-go-to="data_path">{}</button>: '
    "the data cannot be used yet. The problems are listed there.</li>"
)


def data_problem_note(label: str) -> str:
    """Return a note for the Start button that the data has problems, with a link to the path field."""
    return _DATA_PROBLEM_NOTE.format(as_html(label))


def inspection_error(error: Exception) -> str:
    """Render why data could not be inspected."""
    return f'<div class="ddp-own"><p class="ddp-fatal" role="alert">{as_html(error)}</p></div>'


def describe_lowered_batch(requested: int, lowered: int, max_batch: int) -> str:
    """Return a note that the batch was lowered, with the reason."""
    return (
        f"The batch was lowered from {requested:,} to {lowered:,}: "
        f"each rank has only {max_batch:,} training samples."
    )


def own_data(inspection: Inspection, note: str = "", *, may_install: bool = False) -> str:
    """Render an inspection of own data: detected task, problems and preview.

    Args:
        may_install: True if the current user can install packages.
    """

    def css_class(problem: Mapping[str, Any]) -> str:
        return "ddp-fatal" if problem["is_fatal"] else "ddp-harmless"

    parts = [f"<p>{_detected_task(inspection)}</p>"]
    if note:
        parts.append(f"<p>{as_html(note)}</p>")
    if inspection.problems:
        lines = "".join(
            f'<li class="{css_class(problem)}">{as_html(problem_line(problem))} {_remedy_button(problem)}'
            f"{install_button(problem['package']) if may_install and problem.get('package') else ''}</li>"
            for problem in inspection.problems[:MAX_PROBLEMS_SHOWN]
        )
        num_more = inspection.num_problems - min(len(inspection.problems), MAX_PROBLEMS_SHOWN)
        more_line = f"<li>and {num_more:,} more</li>" if num_more > 0 else ""
        parts.append(f'<ul class="ddp-faults">{lines}{more_line}</ul>{_exclude_button(inspection)}')
    parts += [
        _thumbnails(inspection.preview),
        _decisions(inspection),
        _rows(inspection.preview, inspection.label_column),
        _counts(inspection.preview),
        _text(inspection.preview),
    ]
    parts.append(_size_summary(inspection))
    return f'<div class="ddp-own">{"".join(parts)}</div>'


def _detected_task(inspection: Inspection) -> str:
    if inspection.task is None:
        return "<b>This data cannot be used yet.</b>"
    task = f"<b>{as_html(inspection.task.replace('_', ' '))}</b>"
    if any(problem["is_fatal"] for problem in inspection.problems):
        return f"Recognised as {task}. Fix these problems before training:"
    return f"Recognised as {task}. {_sizes(inspection)}"


def _exclude_button(inspection: Inspection) -> str:
    """Return a button that excludes all unreadable samples; empty if excluding them would not be enough."""
    num_unreadable = inspection.num_to_leave_out
    if not num_unreadable:
        return ""
    total = inspection.preview.get("num_rows") or inspection.preview.get("num_images") or 0
    # If a row has problems in several columns, each problem is counted, so the number is an upper bound.
    is_sure = inspection.kind == "images" or len(inspection.problems) == 1
    if num_unreadable > LARGE_SHARE * total > 0:
        label = f"Leave out {'' if is_sure else 'up to '}{num_unreadable:,} of {total:,} samples"
        return fill_in.suggestion_button({"skip_unreadable": True}, label)
    samples = f"these {num_unreadable:,}" if num_unreadable > 1 else "this one"
    label = f"Leave {samples} out" if is_sure else "Leave these rows out"
    return fill_in.suggestion_button({"skip_unreadable": True}, label)


def _remedy_button(problem: Mapping[str, Any]) -> str:
    """Return a button that applies a problem's suggested remedy; empty without one."""
    values = dict(problem.get("suggested", {}))
    if not values:
        return ""
    value_texts = ", ".join(_value_text(name, str(value)) for name, value in values.items())
    return fill_in.suggestion_button(
        values, str(problem.get("action", ""))[:MAX_ACTION] or f"Use {value_texts[:MAX_CELL]}"
    )


def _value_text(field: str, value: str) -> str:
    if field == "data_path":
        return value.rpartition("/")[2]
    return value.replace("_", " ") if field == "data_task" else value or "the column found automatically"


def _sizes(inspection: Inspection) -> str:
    if inspection.dataset is None:
        return ""
    dataset, unit = inspection.dataset, as_html(inspection.dataset.sample_unit)
    return f"{dataset.num_train:,} {unit} to train, {dataset.num_validation:,} to validate."


def _thumbnails(preview: Mapping[str, Any]) -> str:
    figures = []
    for item in preview.get("thumbnails", []):
        source = _png_data_url(item)
        name = html.escape(visible(f"{item['class']}: {item['name']}"[:MAX_CELL]))
        figures.append(f'<figure><img src="{source}" alt="{name}"><figcaption>{name}</figcaption></figure>')
    return f'<div class="ddp-thumbnails">{"".join(figures)}</div>' if figures else ""


def _png_data_url(item: Mapping[str, Any]) -> str:
    """Return a data URL with a PNG of an item's pixels: the browser gets no bytes of the file itself."""
    mode, size = "L" if item["channels"] == 1 else "RGB", (int(item["width"]), int(item["height"]))
    png = io.BytesIO()
    Image.frombytes(mode, size, base64.b64decode(item["pixels"])).save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii")


def _decisions(inspection: Inspection) -> str:
    """Render the detected content of each column, with a menu that overrides it."""
    columns = [column for column in inspection.columns if column.get("decision")]
    if not columns:
        return ""
    lines = []
    for column in columns[:MAX_DECISIONS_SHOWN]:
        name = str(column["name"])
        is_label = name == inspection.label_column
        note = " (to be predicted)" if is_label else "" if column.get("is_used") else " (not used)"
        css_class = "ddp-unsure" if column.get("confidence") != "high" else ""
        lines.append(
            f'<li class="{css_class}"><span><b>{_cell(name)}</b>{note}: '
            f"{as_html(str(column['decision'])[:MAX_DECISION])}</span>"
            f"{_kind_menu(name, is_chosen=bool(column.get('is_chosen')))}</li>"
        )
    more = f"<li>and {len(columns) - len(lines):,} more</li>" if len(columns) > len(lines) else ""
    return f'<ul class="ddp-decisions" aria-label="What each column holds">{"".join(lines)}{more}</ul>'


def _kind_menu(name: str, *, is_chosen: bool) -> str:
    """Return a menu for a column's content; its options are suggestions."""
    options = []
    for kind in (None, *COLUMN_KINDS):
        values = {"data_reading": {"columns": {name: kind}}}
        values_json = html.escape(json.dumps(values), quote=True)
        option_text = ("read automatically" if is_chosen else "change…") if kind is None else kind
        options.append(f'<option data-values="{values_json}">{as_html(option_text)}</option>')
    label = html.escape(visible(f"What {name[:MAX_CELL]} holds"), quote=True)
    return f'<select class="ddp-suggestion" aria-label="{label}">{"".join(options)}</select>'


def _rows(preview: Mapping[str, Any], label: str | None) -> str:
    """Render the first rows as written and, if different, as read; the label column is always included."""
    rows = preview.get("rows", [])
    if not rows:
        return ""
    names = [str(name) for name in preview.get("header", [])]
    shown_columns = list(range(len(names)))[:MAX_COLUMNS_SHOWN]
    label_index = names.index(label) if label in names else None
    if label_index is not None and label_index not in shown_columns:
        shown_columns[-1] = label_index
    head = "".join(
        f'<th scope="col">{_cell(names[column])}{TO_BE_PREDICTED if column == label_index else ""}</th>'
        for column in shown_columns
    )
    read_rows = [*preview.get("read_rows", []), *[[]] * len(rows)]
    body = "".join(
        f"<tr>{''.join(_table_cell(row, read_row, column) for column in shown_columns)}</tr>"
        for row, read_row in zip(rows[:MAX_ROWS_SHOWN], read_rows, strict=False)
    )
    hidden = len(names) - len(shown_columns)
    more = f"<p>{hidden:,} more column{'s' if hidden > 1 else ''}.</p>" if hidden else ""
    return (
        '<div class="ddp-rows" tabindex="0" role="region" aria-label="The first rows of your table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _table_cell(row: Sequence[Any], read_row: Sequence[Any], column: int) -> str:
    """Render a cell as written, with the value read from it below if that differs."""
    written = str(row[column]) if column < len(row) and row[column] is not None else ""
    value = str(read_row[column]) if column < len(read_row) else written
    is_same = value in ("", written) or _is_same_number(value, written)
    if written and value == "" and column < len(read_row) and any(read_row):
        return f'<td class="ddp-not-read">{_cell(written)}</td>'
    return f"<td>{_cell(written)}{'' if is_same else f'<small>→ {_cell(value)}</small>'}</td>"


def _is_same_number(first: str, second: str) -> bool:
    try:
        return float(first) == float(second)
    except ValueError:
        return False


def _counts(preview: Mapping[str, Any]) -> str:
    counts = preview.get("class_counts", {})
    if not counts:
        return ""
    class_texts = [f"{as_html(str(name)[:MAX_CELL])} {count:,}" for name, count in counts.items()]
    more = (
        f", and {len(class_texts) - MAX_CLASSES_SHOWN:,} more" if len(class_texts) > MAX_CLASSES_SHOWN else ""
    )
    return f"<p>{len(class_texts):,} classes: {', '.join(class_texts[:MAX_CLASSES_SHOWN])}{more}.</p>"


def _size_summary(inspection: Inspection) -> str:
    """Render the sizes that determine batch, sequence length and model."""
    preview, parts = inspection.preview, []
    if shape := preview.get("shape"):
        channels, height, width = shape
        parts.append(
            f"Every image becomes {width} × {height} pixels, {'grey' if channels == 1 else 'in colour'}."
        )
    if rows := preview.get("num_rows"):
        label = (
            f"; to be predicted: <b>{_cell(inspection.label_column)}</b>" if inspection.label_column else ""
        )
        parts.append(f"{rows:,} rows{label}.")
    if target := preview.get("target"):
        parts.append(
            f"Its values range from {target['min']:.4g} to {target['max']:.4g}, with a median of "
            f"{target['median']:.4g}."
        )
    if word_counts := preview.get("num_words"):
        shortest, longest = word_counts["shortest"], word_counts["longest"]
        parts.append(
            f"Texts of {shortest:,} to {longest:,} words, half of them at most {word_counts['median']:,}."
            if shortest < longest
            else f"Each text has {longest:,} word{'' if longest == 1 else 's'}."
        )
    if characters := preview.get("num_characters"):
        parts.append(f"{characters:,} characters, {preview['num_distinct']:,} of them different.")
    return f"<p>{' '.join(parts)}</p>" if parts else ""


def _text(preview: Mapping[str, Any]) -> str:
    text = preview.get("text")
    return f"<blockquote>{as_html(text)}</blockquote>" if text else ""


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return as_html(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")


IDENTITY_JS = "(value) => value"
STEPS_PER_EPOCH = 4
MIN_LOWERED_BATCH = 4
AUTOMATIC_COLUMN = ("found automatically", "")


class OwnDataSection:
    """The section of the form; it is visible only while own data is selected.

    Attributes:
        choose: Selects own data, as the list of data sets does.
    """

    def __init__(self, form: Form) -> None:
        """Lay out the section."""
        self._form = form
        # Hidden controls that receive a clicked suggestion.
        self._suggest = gr.Button("Use", elem_id="suggestion", elem_classes="ddp-nowhere")
        self._suggested = gr.Textbox(visible=False, max_length=fill_in.MAX_CHARACTERS)
        # The path when its field last lost focus, because losing focus without a change needs no inspection.
        self._entered = gr.Textbox(visible=False)
        # assets/js/train/form.js clicks this button when a file is dropped.
        self.choose = gr.Button("Your own data", elem_id="choose-own-data", elem_classes="ddp-nowhere")
        with gr.Column(visible=False, elem_id="own-data") as self._group:
            with gr.Group():
                form.add_controls("data_path")
            with gr.Row():
                self._upload = gr.UploadButton(
                    "Upload a file", file_types=list(KINDS), size="md", elem_id="upload-own-data"
                )
                self._inspect = gr.Button("Inspect", size="md", elem_id="inspect-button")
            with gr.Group(elem_classes="ddp-fold"), gr.Row():
                form.add_controls("data_task", "label_column", "skip_unreadable")
            # Buttons in the result of the inspection set both fields.
            with gr.Accordion(
                "Folder of the images, changes in how it is read", open=False, elem_classes="ddp-fold"
            ):
                form.add_controls("images_path", "data_reading")
            self._result = gr.HTML(NOT_INSPECTED, elem_id="own-data-seen")

    def connect(
        self, api: Api, uploads: Uploads, controls: list[Any], filled_from: gr.Textbox, filled: gr.Textbox
    ) -> list[Any]:
        """Connect the events; return the events after which the plan must be updated.

        Args:
            filled_from: changes when the form was filled in from a run.
            filled: JSON of the values filled in by rules (`fill_in.recommend_values`).
        """
        form, fields = self._form, self._form.controls
        path, images, reading = fields["data_path"], fields["images_path"], fields["data_reading"]
        assert (
            isinstance(path, gr.Textbox)
            and isinstance(images, gr.Textbox)
            and isinstance(reading, gr.Textbox)
        )

        @as_current_user
        def store_upload(uploaded: str) -> str:
            try:
                return str(uploads.keep(uploaded))
            except (ValueError, OSError) as error:
                raise make_escaped_error(explain(error)) from error

        @as_current_user
        async def inspect(filled: str, *values: Any) -> list[Any]:
            return await _inspect(form, api, filled, form.to_raw(*values), anew=False)

        @as_current_user
        async def inspect_again(filled: str, *values: Any) -> list[Any]:
            return await _inspect(form, api, filled, form.to_raw(*values), anew=True)

        fields["dataset"].change(partial(_show, form), fields["dataset"], self._group, **BESIDE_PREVIEW)
        # Users continue to type while data is inspected; "always_last" inspects the latest input.
        options: dict[str, Any] = {
            "inputs": [filled, *controls],
            "outputs": [
                self._result,
                fields["label_column"],
                fields["model"],
                filled,
                *(fields[name] for name in recipe.FIELDS),
            ],
            "trigger_mode": "always_last",
            "concurrency_limit": None,
            "show_progress_on": self._result,
            "api_visibility": "private",
        }
        self._upload.upload(
            store_upload,
            self._upload,
            path,
            concurrency_limit=None,
            api_visibility="private",
        ).success(None, path, self._entered, js=IDENTITY_JS)
        gr.on([path.submit, path.blur], None, path, self._entered, js=IDENTITY_JS)
        suggested = self._suggest.click(
            partial(fill_in.suggestion_updates, form),
            [self._suggested, reading],
            [fields[name] for name in fill_in.FIELDS],
            js=fill_in.CLICKED_JS,
            queue=False,
            show_progress="hidden",
            api_visibility="private",
            # Gradio's default drops a second change while the first is on its way.
            trigger_mode="always_last",
        ).success(inspect, **options)
        pressed = self._inspect.click(inspect_again, **options)
        edited = gr.on(
            [
                self._entered.change,
                fields["data_task"].input,
                fields["label_column"].input,
                fields["skip_unreadable"].input,
                images.submit,
                images.blur,
                reading.submit,
                reading.blur,
                fields["dataset"].input,
                filled_from.change,
            ],
            inspect,
            **options,
        )
        return [suggested, pressed, edited]


def start_button_text(error: ConfigError, form: Form) -> str:
    """Return a short form of a data error for the Start button; details are in the inspection's result."""
    if isinstance(error, NotInspectedError):
        return NOT_INSPECTED_NOTE
    is_faulty = isinstance(error, FaultyDataError)
    return data_problem_note(str(form.controls["data_path"].label)) if is_faulty else ""


def _show(form: Form, dataset: str) -> Any:
    return gr.update(visible=dataset in form.catalogue.own_data)


async def _inspect(form: Form, api: Api, filled: str, raw: dict[str, Any], *, anew: bool) -> list[Any]:
    """Inspect own data; return updates of result, columns, fitting models and recommended values."""
    no_updates = [gr.skip()] * (3 + len(recipe.FIELDS))
    if not form.is_own_data(raw):
        return [gr.skip(), *no_updates]
    if not str(raw["data_path"] or "").strip():
        return [NOT_INSPECTED, *no_updates]
    try:
        result = await api.inspect({name: raw[name] for name in INSPECTED_FIELDS}, anew=anew)
    except (ValueError, InspectionError) as error:
        return [inspection_error(error), *no_updates]
    # Gradio translates choices, and warns about a bare "label", which is the name of a group of translations.
    columns = [(f"{visible(str(column['name']))} ", str(column["name"])) for column in result.columns]
    # A form for a checkpoint keeps the checkpoint's model.
    is_fixed = bool(raw["start_from"])
    choices = form.model_choices_for_task(result.task) if result.task and not is_fixed else []
    names = [name for _, name in choices]
    picked_model = raw["model"] if raw["model"] in names else names[0] if names else gr.skip()
    # If a run filled in the form, its values stay unchanged.
    adapted = raw | ({"model": picked_model} if choices else {})
    changes, filled = await CLICKS.run(
        partial(fill_in.recommend_values, form, api.recipe, filled, adapted, leaves_preset=False)
    )
    max_batch, batch = api.largest_batch(raw, result), changes.get("batch_size", raw["batch_size"])
    note = ""
    if max_batch is not None and batch > max_batch:
        changes["batch_size"] = _fitting_batch(max_batch)
        note = describe_lowered_batch(batch, changes["batch_size"], max_batch)
    return [
        own_data(result, note, may_install=current_user().is_teacher),
        gr.update(choices=[AUTOMATIC_COLUMN, *columns]),
        gr.update(choices=choices, value=picked_model) if choices else gr.skip(),
        filled,
        *fill_in.field_updates(form, recipe.FIELDS, changes),
    ]


def _fitting_batch(num_samples: int) -> int:
    """Return a batch size with several steps per epoch from the number of samples per rank."""
    batch_size: int = 2 ** max(0, (num_samples // STEPS_PER_EPOCH).bit_length() - 1)
    return max(batch_size, min(num_samples, MIN_LOWERED_BATCH))


INSPECTED_FIELDS = (
    "dataset", "data_path", "label_column", "data_task", "skip_unreadable", "images_path", "data_reading",
    "sequence_length",
)  # fmt: skip
