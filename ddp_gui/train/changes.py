"""In which fields the form differs from its defaults, or from the run it was filled in from."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddp_gui.http.visible import as_html
from ddp_gui.plan.catalogue import Catalogue
from ddp_gui.train import presets
from ddp_gui.train.form import FOLDED_WHERE, Form
from trainers.contract import config as config_module
from trainers.contract.config.teaching import NO_MISTAKE

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


def differences(
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


def in_html(
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
    from_defaults = differences(form, catalogue, usual if defaults is None else defaults, now)
    topics = Counter(topic_of(change.name) for change in from_defaults)
    chosen = next(
        (
            preset.name
            for preset in presets.PRESETS
            if not differences(form, catalogue, form.unset_values() | dict(preset.values), now)
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
    changes = differences(form, catalogue, before, now)
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
