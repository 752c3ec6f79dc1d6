"""Values that fill in the form: suggestions, an earlier run, and what differs from the defaults."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from ddp_gui.http.shell import as_html, visible
from ddp_gui.plan import recipe
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.runs.runs import RunStore
from ddp_gui.train import form as form_module
from ddp_gui.train.form import FOLDED_WHERE, Form
from trainers.contract import config as config_module
from trainers.contract.config import Config, ConfigError, Problem, options
from trainers.contract.config.sections import NO_MISTAKE

FIELDS = (
    "data_path", "label_column", "data_task", "skip_unreadable", "images_path", "data_reading", "batch_size",
    "nproc_per_node",
)  # fmt: skip
MAX_CHARACTERS = 10_000
# Gradio passes on an array: one value for each input of `updates`.
CLICKED = "(_, reading) => [document.getElementById('suggestion').dataset.values, reading]"


def suggestion_button(values: Mapping[str, Any], words: str) -> str:
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


def suggestion_updates(form: Form, sent: str, reading: str = "") -> list[Any]:
    """Return what sets the controls of `FIELDS` to the values of a suggestion; other fields stay.

    Args:
        reading: the current value of `data_reading`; a suggestion changes parts of it.
    """
    values = _object(sent)
    if change := values.get("data_reading"):
        values["data_reading"] = merge_suggestion(reading, change)
    return updates_of(form, FIELDS, values)


def merge_suggestion(reading: str, change: Any) -> str:
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


MAX_SHOWN_PROBLEMS = 60


def problem_text(error: ConfigError, form: Form) -> str:
    """Return one line per problem."""
    return visible(
        "\n".join(f"{label}: {words}" if label else words for label, words, _ in _said(error, form))
    )


def problem_html(error: ConfigError, form: Form) -> str:
    """Return a list of the problems; assets/js/train/problems.js marks the fields that it names."""
    lines = []
    for label, words, problem in _said(error, form):
        kind = "ddp-missing" if _is_missing(problem) else "ddp-wrong"
        name = html.escape(problem.field, quote=True)
        begin = f'<button type="button" data-go-to="{name}">{as_html(label)}</button>: ' if label else ""
        click = ""
        if problem.suggestion is not None:
            click = suggestion_button({problem.field: problem.suggestion}, f"Use {problem.suggestion:,}")
        lines.append(
            f'<li class="{kind}" data-field="{name}">{begin}<span>{as_html(words)}</span> {click}</li>'
        )
    return (
        '<div class="ddp-problems" role="group" aria-label="This cannot be started">'
        f"<ul>{''.join(lines)}</ul></div>"
    )


def _said(error: ConfigError, form: Form) -> Iterator[tuple[str, str, Problem]]:
    """Yield each problem's label, empty for a field that is not in the form, its words, and itself."""
    for problem in error.problems:
        label = str(getattr(form.controls.get(problem.field), "label", "") or "")
        yield label, _problem_words(problem) if label else str(problem), problem


def _problem_words(problem: Problem) -> str:
    if _is_missing(problem):
        return f"not filled in yet. It must be {problem.allowed}."
    value = str(problem.value)
    shown = value if len(value) <= MAX_SHOWN_PROBLEMS else value[: MAX_SHOWN_PROBLEMS - 1] + "…"
    if value[:1].isalpha():
        shown = f"“{shown}”"  # a sentence would begin with it in capitals
    return f"{shown} is not possible. It must be {problem.allowed}."


def _is_missing(problem: Problem) -> bool:
    return problem.value is None or str(problem.value).strip() == ""


MOST_LISTED = 12
MAX_SHOWN = 40
LEFT_OUT = "That run was broken on purpose; the mistake was left out of the form."


@dataclass(frozen=True, kw_only=True)
class Change:
    """One field's value before and now."""

    name: str
    label: str
    before: Any
    now: Any


def list_changes(
    form: Form, catalogue: Catalogue, before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Change]:
    """Return the fields of the form that differ and mean something with these values."""
    return [
        Change(name=name, label=_label(form, name), before=before.get(name), now=now.get(name))
        for name in form.names
        if catalogue.means_something(name, now) and not _is_same(before.get(name), now.get(name))
    ]


def _label(form: Form, name: str) -> str:
    """Return a field's label without the range that some have."""
    return str(form.controls[name].label).partition(" (")[0]


def changes_html(
    form: Form,
    catalogue: Catalogue,
    now: Mapping[str, Any],
    filled_from: tuple[str, Mapping[str, Any]] | None,
    defaults: Mapping[str, Any] | None = None,
) -> str:
    """Return one line with the differences; attributes hold the chosen preset, counts per fold, and values.

    assets/js/train/changes.js shows the first two and keeps the values for a reload.

    Args:
        filled_from: the run that the form was filled in from: its name and configuration.
        defaults: the values of all fields for this data set and model; None: those that the form opens with.
    """
    usual = form.usual_values()
    from_defaults = list_changes(form, catalogue, usual if defaults is None else defaults, now)
    topics = Counter(topic_of(change.name) for change in from_defaults)
    chosen = next(
        (
            preset.name
            for preset in form_module.PRESETS
            if not list_changes(form, catalogue, form.unset_values() | dict(preset.values), now)
        ),
        "",
    )
    values = {
        name: now[name] for name in form.names if name in now and not _is_same(usual.get(name), now[name])
    }
    attributes = (
        f'data-preset="{chosen}" data-topics="{html.escape(json.dumps(topics), quote=True)}" '
        f'data-values="{html.escape(json.dumps(values), quote=True)}"'
    )
    words = _words(form, catalogue, from_defaults, filled_from, now)
    return f'<p class="ddp-changes" role="status" {attributes}>{words}</p>'


def topic_of(name: str) -> str:
    """Return the topic whose fold a field is in; a strategy's own options are with the strategy."""
    setting = config_module.settings().get(name)
    if setting is None:
        return "parallel"
    return "main" if setting.topic == "where" and name not in FOLDED_WHERE else setting.topic


def _words(
    form: Form,
    catalogue: Catalogue,
    from_defaults: list[Change],
    filled_from: tuple[str, Mapping[str, Any]] | None,
    now: Mapping[str, Any],
) -> str:
    if filled_from is None:
        return f"Changed from the defaults: {_listed(from_defaults, catalogue)}" if from_defaults else ""
    name, before = filled_from
    changes = list_changes(form, catalogue, before, now)
    was_left_out = before.get("mistake", NO_MISTAKE) != NO_MISTAKE and now.get("mistake") == NO_MISTAKE
    note = " " + LEFT_OUT if was_left_out else ""
    if not changes:
        return f"The same settings as {as_html(name)}."
    return f"As {as_html(name)}, but: {_listed(changes, catalogue)}{note}"


def _listed(changes: list[Change], catalogue: Catalogue) -> str:
    listed = [
        f"<span><b>{as_html(change.label)}</b> {_value(change.before, change.name, catalogue)} "
        f"→ {_value(change.now, change.name, catalogue)}</span>"
        for change in changes[:MOST_LISTED]
    ]
    if len(changes) > MOST_LISTED:
        listed.append(f"<span>and {len(changes) - MOST_LISTED} more</span>")
    return " · ".join(listed)


def _value(value: Any, name: str, catalogue: Catalogue) -> str:
    if value is None or value == "":
        return "empty" if name != "model_size" else "usual"
    if isinstance(value, bool):
        return "on" if value else "off"
    entries: dict[str, Mapping[str, Any]] = {
        "dataset": catalogue.datasets,
        "model": catalogue.models,
        "strategy": catalogue.strategies,
        "mistake": catalogue.mistakes,
    }
    entry = entries.get(name, {}).get(str(value))
    text = f"{value:g}" if isinstance(value, float) else str(entry.label if entry else value)
    return as_html(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…")


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, bool) or isinstance(now, bool):
        return bool(before) is bool(now)
    if before in (None, "") or now in (None, ""):
        return before in (None, "") and now in (None, "")
    try:
        return float(before) == float(now)
    except (TypeError, ValueError):
        return str(before).strip() == str(now).strip()


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
    for preset in form_module.PRESETS:
        own = {
            name: value for name, value in preset.values.items() if name not in form_module.WHAT_IS_TRAINED
        }
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
        if name in known or options.NAME.fullmatch(name)
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
