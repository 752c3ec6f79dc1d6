"""Values that fill in the form (from suggestions or an earlier run), and changes from the defaults."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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
Json = TypeVar("Json", dict[str, Any], list[Any])
# JavaScript that returns the suggestions clicked since the last request (see assets/js/train/form.js). Gradio
# expects an array with one value per input of `suggestion_updates`.
CLICKED_JS = """(_, reading) => {
  const place = document.getElementById("suggestion");
  const clicked = place.dataset.values ?? "[]";
  delete place.dataset.values;
  return [clicked, reading];
}"""


def suggestion_button(values: Mapping[str, Any], label: str) -> str:
    """Return a button that sets these fields; assets/js/train/form.js handles its clicks."""
    values_json = html.escape(json.dumps(dict(values)), quote=True)
    return (
        f'<button type="button" class="ddp-suggestion" data-values="{values_json}">{as_html(label)}</button>'
    )


def suggestion_updates(form: Form, suggestions_json: str, reading: str = "") -> list[Any]:
    """Return updates that set the controls of `FIELDS` to suggested values; others stay unchanged.

    Args:
        suggestions_json: JSON array of the suggestions, each an object; a later one overrides an earlier one.
        reading: current value of `data_reading`, which a suggestion may change in part.
    """
    values: dict[str, Any] = {}
    for suggestion in _parse_json(suggestions_json, list):
        if not isinstance(suggestion, dict):
            continue
        values |= suggestion
        if change := suggestion.get("data_reading"):
            values["data_reading"] = reading = merge_suggestion(reading, change)
    return field_updates(form, FIELDS, values)


def merge_suggestion(reading: str, change: Any) -> str:
    """Merge a change into `data_reading`, both JSON objects; null removes a name."""
    current = _parse_json(reading, dict)
    for name, value in (change if isinstance(change, dict) else _parse_json(change, dict)).items():
        if isinstance(value, dict) and isinstance(old := current.get(name, {}), dict):
            merged = {key: entry for key, entry in {**old, **value}.items() if entry is not None}
            value = merged or None
        current[name] = value
    current = {name: value for name, value in current.items() if value is not None}
    return json.dumps(current, ensure_ascii=False) if current else ""


def _parse_json(text: Any, kind: type[Json]) -> Json:
    """Return the value of JSON text; an empty value if the text is not JSON or of another type."""
    try:
        values = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return kind()
    return values if isinstance(values, kind) else kind()


MAX_PROBLEM_VALUE = 60


def problem_text(error: ConfigError, form: Form) -> str:
    """Return the problems as text, one per line."""
    return visible(
        "\n".join(f"{label}: {text}" if label else text for label, text, _ in _labelled_problems(error, form))
    )


def problem_html(error: ConfigError, form: Form) -> str:
    """Return the problems as a list; assets/js/train/form.js marks the fields that it names."""
    lines = []
    for label, text, problem in _labelled_problems(error, form):
        css_class = "ddp-missing" if _is_missing(problem) else "ddp-wrong"
        name = html.escape(problem.field, quote=True)
        field_link = f'<button type="button" data-go-to="{name}">{as_html(label)}</button>: ' if label else ""
        button = ""
        if problem.suggestion is not None:
            button = suggestion_button({problem.field: problem.suggestion}, f"Use {problem.suggestion:,}")
        lines.append(
            f'<li class="{css_class}" data-field="{name}">{field_link}'
            f"<span>{as_html(text)}</span> {button}</li>"
        )
    return (
        '<div class="ddp-problems" role="group" aria-label="This cannot be started">'
        f"<ul>{''.join(lines)}</ul></div>"
    )


def _labelled_problems(error: ConfigError, form: Form) -> Iterator[tuple[str, str, Problem]]:
    """Yield each problem with its field's label (empty if it is not in the form) and its text."""
    for problem in error.problems:
        label = str(getattr(form.controls.get(problem.field), "label", "") or "")
        yield label, _problem_text(problem) if label else str(problem), problem


def _problem_text(problem: Problem) -> str:
    if _is_missing(problem):
        return f"not filled in. Allowed: {problem.allowed}."
    value = str(problem.value)
    value_text = value if len(value) <= MAX_PROBLEM_VALUE else value[: MAX_PROBLEM_VALUE - 1] + "…"
    if value[:1].isalpha():
        value_text = f"“{value_text}”"  # quoted, because otherwise the sentence would begin in lower case
    return f"{value_text} is not possible. Allowed: {problem.allowed}."


def _is_missing(problem: Problem) -> bool:
    return problem.value is None or str(problem.value).strip() == ""


MAX_LISTED = 12
MAX_VALUE_SHOWN = 40
MISTAKE_LEFT_OUT = "That run was broken on purpose. This form does not contain the mistake."


@dataclass(frozen=True, kw_only=True)
class Change:
    """A field's previous and current value."""

    name: str
    label: str
    before: Any
    now: Any


def list_changes(
    form: Form, catalogue: Catalogue, before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Change]:
    """Return the relevant fields of the form whose values differ."""
    return [
        Change(name=name, label=_label(form, name), before=before.get(name), now=now.get(name))
        for name in form.names
        if catalogue.is_applicable(name, now) and not _is_same(before.get(name), now.get(name))
    ]


def _label(form: Form, name: str) -> str:
    """Return a field's label without the range in parentheses."""
    return str(form.controls[name].label).partition(" (")[0]


def changes_html(
    form: Form,
    catalogue: Catalogue,
    now: Mapping[str, Any],
    filled_from: tuple[str, Mapping[str, Any]] | None,
    defaults: Mapping[str, Any] | None = None,
) -> str:
    """Return one line with the changes. Its attributes contain the preset, counts per fold, and changed
    values.

    assets/js/train/form.js displays the first two and keeps the values for a reload.

    Args:
        filled_from: name and configuration of the run that filled in the form.
        defaults: default values for this data set and model; None: the values with which the form opens.
    """
    opening_values = form.usual_values()
    from_defaults = list_changes(form, catalogue, opening_values if defaults is None else defaults, now)

    def is_chosen(preset: form_module.Preset) -> bool:
        has_rules = preset.values.keys() <= form_module.WHAT_IS_TRAINED
        base_values = defaults if has_rules and defaults is not None else form.unset_values()
        return not list_changes(form, catalogue, {**base_values, **preset.values}, now)

    topics = Counter(field_topic(change.name) for change in from_defaults)
    chosen = next((preset.name for preset in form_module.PRESETS if is_chosen(preset)), "")
    values = {
        name: now[name]
        for name in form.names
        if name in now and not _is_same(opening_values.get(name), now[name])
    }
    attributes = (
        f'data-preset="{chosen}" data-topics="{html.escape(json.dumps(topics), quote=True)}" '
        f'data-values="{html.escape(json.dumps(values), quote=True)}"'
    )
    summary = _summary(form, catalogue, from_defaults, filled_from, now)
    return f'<p class="ddp-changes" role="status" {attributes}>{summary}</p>'


def field_topic(name: str) -> str:
    """Return the topic whose fold contains a field; a strategy's own options belong to "parallel"."""
    setting = config_module.settings().get(name)
    if setting is None:
        return "parallel"
    return "main" if setting.topic == "where" and name not in FOLDED_WHERE else setting.topic


def _summary(
    form: Form,
    catalogue: Catalogue,
    from_defaults: list[Change],
    filled_from: tuple[str, Mapping[str, Any]] | None,
    now: Mapping[str, Any],
) -> str:
    if filled_from is None:
        return f"Changed from the defaults: {_change_list(from_defaults, catalogue)}" if from_defaults else ""
    name, before = filled_from
    changes = [
        change
        for change in list_changes(form, catalogue, before, now)
        if change.name != form_module.START_FIELD
    ]
    was_left_out = before.get("mistake", NO_MISTAKE) != NO_MISTAKE and now.get("mistake") == NO_MISTAKE
    note = " " + MISTAKE_LEFT_OUT if was_left_out else ""
    if not changes:
        return f"Same settings as {as_html(name)}."
    return f"Same settings as {as_html(name)}, except: {_change_list(changes, catalogue)}{note}"


def _change_list(changes: list[Change], catalogue: Catalogue) -> str:
    listed = [
        f"<span><b>{as_html(change.label)}</b> {_value(change.before, change.name, catalogue)} "
        f"→ {_value(change.now, change.name, catalogue)}</span>"
        for change in changes[:MAX_LISTED]
    ]
    if len(changes) > MAX_LISTED:
        listed.append(f"<span>and {len(changes) - MAX_LISTED} more</span>")
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
    labels = catalogue.own_data if name == "dataset" else {}
    entry = entries.get(name, {}).get(str(value))
    label = entry.label if entry else labels.get(str(value), value)
    text = f"{value:g}" if isinstance(value, float) else str(label)
    return as_html(text if len(text) <= MAX_VALUE_SHOWN else text[: MAX_VALUE_SHOWN - 1] + "…")


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
# Returns values for the fields of `recipe.FIELDS` that a configuration omits (`Api.recipe`).
Rules = Callable[[dict[str, Any]], dict[str, Any]]


def updates(form: Form, values: Mapping[str, Any]) -> list[Any]:
    """Return updates that set every control: to these values, and all others to their defaults."""
    all_values = form.unset_values() | dict(values)
    choices = {
        "model": form.model_choices(str(all_values["dataset"])),
        "model_size": form.size_choices(str(all_values["model"]), str(all_values["dataset"])),
        "strategy": form.strategy_choices(str(all_values["model"])),
    }
    has_start = bool(all_values[form_module.START_FIELD])
    choices["dataset"] = form.dataset_choices(str(all_values["dataset"]) if has_start else "")
    changes = []
    for name in form.names:
        options: dict[str, Any] = {"choices": choices[name]} if name in choices else {}
        if name in form_module.FIXED_BY_START:
            options["interactive"] = not has_start
        changes.append(gr.update(value=form.to_control_value(name, all_values[name]), **options))
    return changes


def preset_replacements(form: Form, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that replace a preset's when the user selects another data set or model.

    Empty if the user has edited one of the preset's values.
    """
    unset = form.unset_values()
    for preset in form_module.PRESETS:
        preset_values = {
            name: value for name, value in preset.values.items() if name not in form_module.WHAT_IS_TRAINED
        }
        is_left = any(preset.values[name] != raw[name] for name in ("dataset", "model"))
        if (
            preset_values
            and is_left
            and all(_is_shown(form, name, raw[name], value) for name, value in preset_values.items())
        ):
            return {name: unset[name] for name in preset_values}
    return {}


def recommend_values(
    form: Form, rules: Rules, filled: str, raw: Mapping[str, Any], *, leaves_preset: bool
) -> tuple[dict[str, Any], str]:
    """Return recommended values for a new data set, model or number of ranks, and the new `filled`.

    Fields that the user has edited keep their values, and the rules take them into account.

    Args:
        rules: returns values for the fields of `recipe.FIELDS` that a configuration omits.
        filled: JSON of the values that this function filled in before; empty after a preset or page load.
        leaves_preset: True if another data set or model was selected; otherwise a preset's values stay.
    """
    if not filled and not leaves_preset:
        return {}, filled
    changes = preset_replacements(form, raw) if leaves_preset else {}
    now = {**raw, **changes}
    before = json.loads(filled) if filled else form.unset_values()
    untouched = [
        name for name in recipe.FIELDS if name in before and _is_shown(form, name, now[name], before[name])
    ]
    recommended = rules({name: value for name, value in now.items() if name not in untouched})
    # Without a rule, for example before own data was inspected, fields return to their defaults.
    if leaves_preset:
        changes |= {name: form.unset_values()[name] for name in untouched}
    changes |= recommended
    return changes, json.dumps({name: changes.get(name, before[name]) for name in untouched})


def defaults_for(form: Form, rules: Rules, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of all fields for this data set and model; these two keep their usual defaults."""
    opening_values = form.usual_values()
    selected = {name: opening_values[name] for name in ("dataset", "model")}
    if all(raw[name] == value for name, value in selected.items()):
        return opening_values
    recommended = rules(without_rules(raw))
    return form.unset_values() | selected | recommended


def field_updates(form: Form, names: Iterable[str], values: Mapping[str, Any]) -> list[Any]:
    """Return updates that set these fields' controls to `values`; fields without a value stay unchanged."""
    return [
        gr.update(value=form.to_control_value(name, values[name])) if name in values else gr.skip()
        for name in names
    ]


def without_rules(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the fields that the rules decide on."""
    return {name: value for name, value in raw.items() if name not in recipe.FIELDS}


def filled_by_rules(form: Form, rules: Rules, raw: Mapping[str, Any]) -> str:
    """Return JSON of the fields whose value in a complete configuration equals the recommended one."""
    recommended = rules(without_rules(raw))
    return json.dumps(
        {name: value for name, value in recommended.items() if _is_shown(form, name, raw[name], value)}
    )


def _is_shown(form: Form, name: str, value: Any, expected: Any) -> bool:
    """Return True if a control displays a value: 0.010 equals 0.01."""
    shown_text, expected_text = form.to_control_value(name, value), form.to_control_value(name, expected)
    try:
        return shown_text == expected_text or float(shown_text) == float(expected_text)
    except (TypeError, ValueError):
        return False


def parse_saved_values(form: Form, text: str) -> dict[str, Any] | None:
    """Parse the values that the browser kept for a reload (from `changes_html`); None without any.

    The values are set in the controls and validated like user input.
    """
    if not text or len(text) > MAX_KEPT_CHARACTERS:
        return None
    try:
        saved = json.loads(text)
    except ValueError:
        return None
    # Without changes, filling in the form could only overwrite what the user is typing.
    if (
        not saved
        or not isinstance(saved, dict)
        or not all(isinstance(value, SCALARS) for value in saved.values())
    ):
        return None
    return form.usual_values() | {name: value for name, value in saved.items() if name in form.controls}


def read_run_config(store: RunStore, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of the run that a URL names, with the URL's changes applied.

    An intentional mistake of that run is omitted unless the URL requests it, so that a user does not repeat
    it unknowingly.

    Raises:
        ValueError: if the run does not exist or a change is invalid; the message gives the reason.
    """
    run = store.open(query.get("from", ""))
    original = run.read_config().to_json() | {"mistake": NO_MISTAKE}
    settings = config_module.settings()
    changes = {
        name: _from_text(name, value)
        for name, value in query.items()
        if name in settings or options.NAME.fullmatch(name)
    }
    config: Config = config_module.parse(original | changes)
    if config.start_from and config.start_from == original["start_from"]:
        source = config.start_from.rpartition("/")[0]
        if not store.has_source(run, source):
            raise ValueError(f"run {run.run_id} started from a checkpoint of {source}, which was deleted")
    values = config.to_json()
    del values["schema_version"]
    return values


def _from_text(name: str, value: str) -> Any:
    """Convert a URL parameter to a configuration value; "true" and "false" become booleans."""
    if name not in config_module.settings() or config_module.type_of(name)[0] is bool:
        return {"true": True, "false": False}.get(value, value)
    return value
