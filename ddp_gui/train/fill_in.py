"""Fills the form in: from a preset, or as a run was, with some fields changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gradio as gr

from ddp_gui.plan import recipe
from ddp_gui.runs.runs import RunStore
from ddp_gui.train import presets
from ddp_gui.train.form import Form
from trainers.contract import config as config_module
from trainers.contract.config import Config, plugin_options
from trainers.contract.config.teaching import NO_MISTAKE

MAX_KEPT_CHARACTERS = 20_000
SCALARS = (str, int, float, bool, type(None))
# Returns the values of the fields of `recipe.FIELDS` that a configuration leaves out (`Api.recipe`).
Rules = Callable[[dict[str, Any]], dict[str, Any]]


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
    """Return the values to fill in when another data set or model than the preset's is picked.

    Where one of them was changed, the person has taken over, and nothing is filled in.
    """
    unset = form.unset_values()
    for preset in presets.PRESETS:
        own = {name: value for name, value in preset.values.items() if name not in presets.WHAT_IS_TRAINED}
        is_left = any(preset.values[name] != raw[name] for name in ("dataset", "model"))
        if is_left and all(_is_shown(form, name, raw[name], value) for name, value in own.items()):
            return {name: unset[name] for name in own}
    return {}


def by_rules(
    form: Form, rules: Rules, filled: str, raw: Mapping[str, Any], *, leaves_preset: bool
) -> tuple[dict[str, Any], str]:
    """Return the rules' values for another data set, model or number of ranks, and the new `filled`.

    Fields that a user has changed keep their values, and the rules take them into account.

    Args:
        rules: returns the values of the fields of `recipe.FIELDS` that a configuration leaves out.
        filled: JSON of what this function has filled in before; empty for a preset and the form as it opens.
        leaves_preset: another data set or model was picked; otherwise a preset's values stay.
    """
    if not filled and not leaves_preset:
        return {}, filled
    changes = without_preset(form, raw) if leaves_preset else {}
    now = {**raw, **changes}
    before = json.loads(filled) if filled else form.unset_values()
    untouched = [
        name for name in recipe.FIELDS if name in before and _is_shown(form, name, now[name], before[name])
    ]
    found = rules({name: value for name, value in now.items() if name not in untouched})
    # Without a rule, as for data that was not inspected yet, fields go back to their own defaults.
    if leaves_preset:
        changes |= {name: form.unset_values()[name] for name in untouched}
    changes |= found
    return changes, json.dumps({name: changes.get(name, before[name]) for name in untouched})


def defaults_for(form: Form, rules: Rules, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of all fields with this data set and model; these two keep their own."""
    usual = form.usual_values()
    picked = {name: usual[name] for name in ("dataset", "model")}
    if all(raw[name] == value for name, value in picked.items()):
        return usual
    found = rules({name: value for name, value in raw.items() if name not in recipe.FIELDS})
    return form.unset_values() | picked | found


def updates_of(form: Form, names: Iterable[str], values: Mapping[str, Any]) -> list[Any]:
    """Return what sets the controls of these fields to `values`; those without a value stay."""
    return [
        gr.update(value=form.shown(name, values[name])) if name in values else gr.skip() for name in names
    ]


def filled_by_rules(form: Form, rules: Rules, raw: Mapping[str, Any]) -> str:
    """Return JSON of the fields in which a complete configuration has the rules' values."""
    found = rules({name: value for name, value in raw.items() if name not in recipe.FIELDS})
    return json.dumps(
        {name: value for name, value in found.items() if _is_shown(form, name, raw[name], value)}
    )


def _is_shown(form: Form, name: str, value: Any, wanted: Any) -> bool:
    """Return True if a control's value is a field's value: 0.010 is 0.01."""
    shown, other = form.shown(name, value), form.shown(name, wanted)
    try:
        return shown == other or float(shown) == float(other)
    except (TypeError, ValueError):
        return False


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
