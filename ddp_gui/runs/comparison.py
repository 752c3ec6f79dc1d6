"""Several runs beside each other: what differs in their configurations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainers.contract import config as config_module
from trainers.contract.config import Config


def differing_fields(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Return the fields that are not the same in all, with each one's value; a run's name is none of them."""
    each = [config.to_json() for config in configs]
    settings = config_module.settings()
    found = []
    for name in dict.fromkeys(name for raw in each for name in raw if name != "schema_version"):
        values = [raw.get(name) for raw in each]
        if name != "name" and any(value != values[0] for value in values):
            # What a plug-in declares for itself has its name alone here.
            label, help_text = (settings[name].label, settings[name].help) if name in settings else (name, "")
            found.append({"field": name, "label": label, "help": help_text, "values": values})
    return found
