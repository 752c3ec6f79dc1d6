"""The part of the first page for a person's own data: path or upload, a look, what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ddp_gui.auth.current_user import current_user
from ddp_gui.background.workers import CLICKS
from ddp_gui.gradio_routes.endpoints import as_current_user
from ddp_gui.gradio_routes.uploads import KINDS, Uploads
from ddp_gui.http.visible import visible
from ddp_gui.launch.user_errors import shown_as_text
from ddp_gui.plan import recipe
from ddp_gui.plan.own_data import FaultyDataError, InspectionError, NotInspectedError
from ddp_gui.train import fill_in, suggestion
from ddp_gui.train import own_data_words as words
from ddp_gui.train.api import Api
from ddp_gui.train.choices import BESIDE_PREVIEW
from ddp_gui.train.form import Form
from trainers.contract.config import ConfigError

AS_IT_IS = "(value) => value"
STEPS_AN_EPOCH = 4
SMALLEST_LOWERED = 4
LAST_COLUMN = ("found automatically", "")


@dataclass(frozen=True, kw_only=True)
class Controls:
    """What is there beside the form's own controls."""

    group: gr.Column
    upload: gr.UploadButton
    inspect_button: gr.Button
    result: gr.HTML
    suggestion: suggestion.Place
    entered: gr.Textbox
    choose: gr.Button


def add_controls(form: Form) -> Controls:
    """Lay it out; it shows only when a person's own data is picked."""
    place = suggestion.add_place()
    # The path when its field was left: leaving it again is no reason to inspect again.
    entered = gr.Textbox(visible=False)
    # assets/js/train/drop.js clicks it when a file is dropped.
    choose = gr.Button("Your own data", elem_id="choose-own-data", elem_classes="ddp-nowhere")
    with gr.Column(visible=False, elem_id="own-data") as group:
        with gr.Group():
            form.add_controls("data_path")
        with gr.Row():
            upload = gr.UploadButton(
                "Upload a file", file_types=list(KINDS), size="md", elem_id="upload-own-data"
            )
            inspect_button = gr.Button("Inspect", size="md", elem_id="inspect-button")
        with gr.Group(elem_classes="ddp-fold"), gr.Row():
            form.add_controls("data_task", "label_column", "skip_unreadable")
        # The inspection's clicks fill in both.
        with gr.Accordion(
            "Folder of the images, changes in how it is read", open=False, elem_classes="ddp-fold"
        ):
            form.add_controls("images_path", "data_reading")
        result = gr.HTML(words.NOT_INSPECTED, elem_id="own-data-seen")
    return Controls(
        group=group,
        upload=upload,
        inspect_button=inspect_button,
        result=result,
        suggestion=place,
        entered=entered,
        choose=choose,
    )


def said_beside_start(error: ConfigError, form: Form) -> str:
    """Return what a data error says beside Start, in short: its details are in the inspection's result."""
    if isinstance(error, NotInspectedError):
        return words.NOT_YET
    is_faulty = isinstance(error, FaultyDataError)
    return words.faulty(str(form.controls["data_path"].label)) if is_faulty else ""


def connect(
    own: Controls,
    form: Form,
    api: Api,
    uploads: Uploads,
    controls: list[Any],
    filled_from: gr.Textbox,
    filled: gr.Textbox,
) -> list[Any]:
    """Connect the controls; return the events after which the plan is to be made again.

    Args:
        filled_from: changes when the form was filled in from a run.
        filled: what the rules have filled in (`fill_in.by_rules`).
    """
    fields = form.controls
    path, images, reading = fields["data_path"], fields["images_path"], fields["data_reading"]
    assert isinstance(path, gr.Textbox) and isinstance(images, gr.Textbox) and isinstance(reading, gr.Textbox)

    @as_current_user
    def take(uploaded: str) -> str:
        try:
            return str(uploads.keep(uploaded))
        except (ValueError, OSError) as error:
            raise shown_as_text(error) from error

    @as_current_user
    async def inspect(filled: str, *values: Any) -> list[Any]:
        return await _inspect(form, api, filled, form.to_raw(*values), anew=False)

    @as_current_user
    async def inspect_again(filled: str, *values: Any) -> list[Any]:
        return await _inspect(form, api, filled, form.to_raw(*values), anew=True)

    fields["dataset"].change(partial(_show, form), fields["dataset"], own.group, **BESIDE_PREVIEW)
    # A person goes on while data is inspected: what was entered last is inspected last.
    options: dict[str, Any] = {
        "inputs": [filled, *controls],
        "outputs": [
            own.result,
            fields["label_column"],
            fields["model"],
            filled,
            *(fields[name] for name in recipe.FIELDS),
        ],
        "trigger_mode": "always_last",
        "concurrency_limit": None,
        "show_progress_on": own.result,
        "api_visibility": "private",
    }
    own.upload.upload(
        take,
        own.upload,
        path,
        concurrency_limit=None,
        api_visibility="private",
    ).success(None, path, own.entered, js=AS_IT_IS)
    gr.on([path.submit, path.blur], None, path, own.entered, js=AS_IT_IS)
    suggested = own.suggestion.button.click(
        partial(suggestion.updates, form),
        [own.suggestion.values, reading],
        [fields[name] for name in suggestion.FIELDS],
        js=suggestion.CLICKED,
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    ).success(inspect, **options)
    pressed = own.inspect_button.click(inspect_again, **options)
    given = gr.on(
        [
            own.entered.change,
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
    return [suggested, pressed, given]


def _show(form: Form, dataset: str) -> Any:
    return gr.update(visible=dataset in form.catalogue.own_data)


async def _inspect(form: Form, api: Api, filled: str, raw: dict[str, Any], *, anew: bool) -> list[Any]:
    """Return what shows an inspection: the result, columns, fitting models, values by the rules."""
    nothing = [gr.skip()] * (3 + len(recipe.FIELDS))
    if not form.is_own_data(raw):
        return [gr.skip(), *nothing]
    if not str(raw["data_path"] or "").strip():
        return [words.NOT_INSPECTED, *nothing]
    try:
        result = await api.inspect({name: raw[name] for name in ASKED}, anew=anew)
    except (ValueError, InspectionError) as error:
        return [words.failed(error), *nothing]
    # Gradio translates what it offers, and "label" alone is a group of its translations: it complains.
    columns = [(f"{visible(str(column['name']))} ", str(column["name"])) for column in result.columns]
    choices = form.model_choices_for_task(result.task) if result.task else []
    names = [name for _, name in choices]
    picked = raw["model"] if raw["model"] in names else names[0] if names else gr.skip()
    # Values of a run that the form was filled in from stay as they were.
    fitting = raw | ({"model": picked} if choices else {})
    changes, filled = await CLICKS.run(
        partial(fill_in.by_rules, form, api.recipe, filled, fitting, leaves_preset=False)
    )
    most, batch = api.largest_batch(raw, result), changes.get("batch_size", raw["batch_size"])
    note = ""
    if most is not None and batch > most:
        changes["batch_size"] = _fitting_batch(most)
        note = words.lowered_batch(batch, changes["batch_size"], most)
    return [
        words.own_data(result, note, may_install=current_user().is_teacher),
        gr.update(choices=[LAST_COLUMN, *columns]),
        gr.update(choices=choices, value=picked) if choices else gr.skip(),
        filled,
        *fill_in.updates_of(form, recipe.FIELDS, changes),
    ]


def _fitting_batch(most: int) -> int:
    """Return a batch with which an epoch has several steps, where a rank has `most` training samples."""
    several: int = 2 ** max(0, (most // STEPS_AN_EPOCH).bit_length() - 1)
    return max(several, min(most, SMALLEST_LOWERED))


ASKED = (
    "dataset", "data_path", "label_column", "data_task", "skip_unreadable", "images_path", "data_reading",
    "sequence_length",
)  # fmt: skip
