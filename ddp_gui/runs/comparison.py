"""Several runs beside each other: what differs in their configurations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainers.contract import config as config_module
from trainers.contract.config import Config


def differing_fields(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Return the fields that are not the same in all, with each one's value; a run's name is none of them."""
    each = [config.to_json() for config in configs]
    found = []
    for name, setting in config_module.settings().items():
        values = [raw[name] for raw in each]
        if name != "name" and any(value != values[0] for value in values):
            found.append({"field": name, "label": setting.label, "help": setting.help, "values": values})
    return found
