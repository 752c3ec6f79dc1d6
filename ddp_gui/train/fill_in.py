"""Fills the form in: from a preset, or as a run was, with some fields changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr

from ddp_gui.runs.runs import RunStore
from ddp_gui.train import presets
from ddp_gui.train.form import Form
from trainers.contract import config as config_module
from trainers.contract.config import Config, plugin_options
from trainers.contract.config.teaching import NO_MISTAKE

MAX_KEPT_CHARACTERS = 20_000
SCALARS = (str, int, float, bool, type(None))


def updates(form: Form, values: Mapping[str, Any]) -> list[Any]:
    """Return what sets every control: these values, and for all others those that nobody has set."""
    wanted = form.unset_values() | dict(values)
    choices = {
        "model": form.model_choices(str(wanted["dataset"])),
        "model_size": form.size_choices(str(wanted["model"]), str(wanted["dataset"])),
        "strategy": form.strategy_choices(str(wanted["model"])),
    }
    changes = []
    for name in form.names:
        more: dict[str, Any] = {"choices": choices[name]} if name in choices else {}
        changes.append(gr.update(value=form.shown(name, wanted[name]), **more))
    return changes


def without_preset(form: Form, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to fill in when a person leaves a preset's data: its other fields were for that data.

    Where one of them was changed, the person has taken over, and nothing is filled in.
    """
    unset = form.unset_values()
    for preset in presets.PRESETS:
        own = {name: value for name, value in preset.values.items() if name not in presets.WHAT_IS_TRAINED}
        if preset.values["dataset"] != raw["dataset"] and all(
            form.shown(name, raw[name]) == form.shown(name, value) for name, value in own.items()
        ):
            return {name: unset[name] for name in own}
    return {}


def as_kept(form: Form, text: str) -> dict[str, Any] | None:
    """Return the values that the browser kept for a reload (`changes.in_html`); None if there are none.

    They are set in the controls and validated like values that were typed.
    """
    if not text or len(text) > MAX_KEPT_CHARACTERS:
        return None
    try:
        kept = json.loads(text)
    except ValueError:
        return None
    # Nothing had been changed: filling in could only overwrite what is typed meanwhile.
    if (
        not kept
        or not isinstance(kept, dict)
        or not all(isinstance(value, SCALARS) for value in kept.values())
    ):
        return None
    return form.usual_values() | {name: value for name, value in kept.items() if name in form.controls}


def as_a_run_was(store: RunStore, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the run an address names, with the changes it asks for.

    A mistake that is built into that run is left out, unless the address asks for it: nobody makes it twice
    unawares.

    Raises:
        ValueError: when there is no such run, or a change is not allowed; says which and why.
    """
    before = store.open(query.get("from", "")).read_config().to_json() | {"mistake": NO_MISTAKE}
    known = config_module.settings()
    changes = {
        name: _from_text(name, value)
        for name, value in query.items()
        if name in known or plugin_options.NAME.fullmatch(name)
    }
    config: Config = config_module.parse(before | changes)
    values = config.to_json()
    del values["schema_version"]
    return values


def _from_text(name: str, value: str) -> Any:
    """Return a value of an address as the configuration takes it: yes and no are words there."""
    if name not in config_module.settings() or config_module.value_type(name) is bool:
        return {"true": True, "false": False}.get(value, value)
    return value
