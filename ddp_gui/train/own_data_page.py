"""The part of the first page for a person's own data: path or upload, a look, what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from ddp_gui.gradio_routes.endpoints import as_current_user
from ddp_gui.gradio_routes.uploads import KINDS, Uploads
from ddp_gui.http.visible import visible
from ddp_gui.launch.user_errors import shown_as_text
from ddp_gui.plan.own_data import InspectionError
from ddp_gui.train import own_data_words as words
from ddp_gui.train.api import Api
from ddp_gui.train.form import Form

LAST_COLUMN = ("found automatically", "")


@dataclass(frozen=True, kw_only=True)
class Controls:
    """What is there beside the form's own controls."""

    group: gr.Column
    upload: gr.UploadButton
    inspect_button: gr.Button
    result: gr.HTML


def add_controls(form: Form) -> Controls:
    """Lay it out; it shows only when a person's own data is picked."""
    with gr.Column(visible=False, elem_id="own-data") as group:
        with gr.Group():
            form.add_controls("data_path")
        with gr.Row():
            upload = gr.UploadButton("Upload a file", file_types=list(KINDS), size="md")
            inspect_button = gr.Button("Inspect", size="md", elem_id="inspect-button")
        with gr.Group(elem_classes="ddp-fold"), gr.Row():
            form.add_controls("data_task", "label_column", "skip_unreadable")
        result = gr.HTML(words.NOT_INSPECTED, elem_id="own-data-seen")
    return Controls(group=group, upload=upload, inspect_button=inspect_button, result=result)


def connect(own: Controls, form: Form, api: Api, uploads: Uploads, controls: list[Any]) -> list[Any]:
    """Connect the buttons; return the events after which the plan is to be made again."""
    model, label = form.controls["model"], form.controls["label_column"]

    @as_current_user
    def take(uploaded: str) -> str:
        try:
            return str(uploads.keep(uploaded))
        except (ValueError, OSError) as error:
            raise shown_as_text(error) from error

    async def inspect(*values: Any, anew: bool = False) -> tuple[str, Any, Any]:
        raw = form.to_raw(*values)
        asked = {name: raw[name] for name in ASKED}
        try:
            result = await api.inspect(asked, anew=anew)
        except (ValueError, InspectionError) as error:
            raise shown_as_text(error) from error
        columns = [(visible(str(column["name"])), str(column["name"])) for column in result.columns]
        choices = form.model_choices_for_task(result.task) if result.task else []
        names = [name for _, name in choices]
        picked = raw["model"] if raw["model"] in names else names[0] if names else gr.skip()
        return (
            words.own_data(result),
            gr.update(choices=[LAST_COLUMN, *columns]),
            gr.update(choices=choices, value=picked) if choices else gr.skip(),
        )

    options: dict[str, Any] = {
        "trigger_mode": "once",
        "concurrency_limit": None,
        "show_progress_on": own.result,
        "api_visibility": "private",
    }

    @as_current_user
    async def inspect_shown(*values: Any) -> tuple[str, Any, Any]:
        return await inspect(*values)

    @as_current_user
    async def inspect_again(*values: Any) -> tuple[str, Any, Any]:
        return await inspect(*values, anew=True)

    outputs = [own.result, label, model]
    taken = own.upload.upload(
        take,
        own.upload,
        form.controls["data_path"],
        concurrency_limit=None,
        api_visibility="private",
    ).success(inspect_shown, controls, outputs, **options)
    asked = own.inspect_button.click(inspect_again, controls, outputs, **options)
    changed = gr.on(
        [form.controls["data_task"].input, label.input],
        inspect_shown,
        controls,
        outputs,
        **options,
    )
    return [taken, asked, changed]


ASKED = ("dataset", "data_path", "label_column", "data_task", "skip_unreadable", "sequence_length")
