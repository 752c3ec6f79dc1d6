"""Fills the form in: from a preset, or as a run was, with some fields changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from ddp_gui.runs.runs import RunStore
from ddp_gui.train.form import Form
from trainers.contract import config as config_module
from trainers.contract.config import Config, plugin_options


def updates(form: Form, values: Mapping[str, Any]) -> list[Any]:
    """Return what sets every control: these values, and the usual ones for all others."""
    wanted = form.usual_values() | dict(values)
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


def as_a_run_was(store: RunStore, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the run an address names, with the changes it asks for.

    Raises:
        ValueError: when there is no such run, or a change is not allowed; says which and why.
    """
    before = store.open(query.get("from", "")).read_config().to_json()
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
