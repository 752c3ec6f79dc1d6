"""Values that the page suggests for the form, each applied by a click."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ddp_gui.http.visible import as_html
from ddp_gui.train import fill_in
from ddp_gui.train.form import Form

FIELDS = (
    "data_path", "label_column", "data_task", "skip_unreadable", "images_path", "data_reading", "batch_size",
    "nproc_per_node",
)  # fmt: skip
MAX_CHARACTERS = 10_000
# Gradio passes on an array: one value for each input of `updates`.
CLICKED = "(_, reading) => [document.getElementById('suggestion').dataset.values, reading]"


def button(values: Mapping[str, Any], words: str) -> str:
    """Return a button that gives fields these values: assets/js/train/suggestions.js sends them."""
    sent = html.escape(json.dumps(dict(values)), quote=True)
    return f'<button type="button" class="ddp-suggestion" data-values="{sent}">{as_html(words)}</button>'


@dataclass(frozen=True, kw_only=True)
class Place:
    """What takes a clicked suggestion; it is in the document and never shown."""

    button: gr.Button
    values: gr.Textbox


def add_place() -> Place:
    """Lay it out."""
    return Place(
        button=gr.Button("Use", elem_id="suggestion", elem_classes="ddp-nowhere"),
        values=gr.Textbox(visible=False, max_length=MAX_CHARACTERS),
    )


def updates(form: Form, sent: str, reading: str = "") -> list[Any]:
    """Return what sets the controls of `FIELDS` to the values of a suggestion; other fields stay.

    Args:
        reading: the current value of `data_reading`; a suggestion changes parts of it.
    """
    values = _object(sent)
    if change := values.get("data_reading"):
        values["data_reading"] = merged(reading, change)
    return fill_in.updates_of(form, FIELDS, values)


def merged(reading: str, change: Any) -> str:
    """Return how a table is read, as JSON, with a change: objects are merged, null removes a name."""
    current = _object(reading)
    for name, value in (change if isinstance(change, dict) else _object(change)).items():
        if isinstance(value, dict) and isinstance(old := current.get(name, {}), dict):
            kept = {key: each for key, each in {**old, **value}.items() if each is not None}
            value = kept or None
        current[name] = value
    current = {name: value for name, value in current.items() if value is not None}
    return json.dumps(current, ensure_ascii=False) if current else ""


def _object(text: Any) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
