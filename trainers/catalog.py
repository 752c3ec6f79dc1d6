"""Prints what can be picked, as JSON: models, data sets, strategies and the plugins that are broken.

    python -m trainers.catalog

The page has no torch; this short-lived process tells it everything it needs of the catalogue.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch

from trainers import registry
from trainers.data import DataSpec


def describe() -> dict[str, Any]:
    """Return the catalogue as JSON values; sizes are counted on models without memory."""
    broken = [asdict(plugin) for plugin in registry.discover_all()]
    specs: dict[str, DataSpec] = {}
    for name, entry in registry.datasets().items():
        try:
            specs[name] = entry.create().spec()
        except Exception as error:  # noqa: BLE001 - a plugin is anybody's code; it is reported, not hidden
            message = f"{type(error).__name__}: {error}"
            broken.append({"module": f"data set {name}", "message": message, "traceback": ""})
    return {
        "models": [_describe_model(entry, specs) for entry in registry.models().values()],
        "datasets": [_describe_dataset(name, spec) for name, spec in specs.items()],
        "strategies": [
            {"name": entry.name, "label": entry.label, "description": entry.description}
            for entry in registry.strategies().values()
        ],
        "errors": broken,
        "watched_paths": sorted({str(path) for spec in specs.values() for path in spec.watched_paths}),
    }


def _describe_model(entry: registry.ModelEntry, specs: dict[str, DataSpec]) -> dict[str, Any]:
    fitting = {name: spec for name, spec in specs.items() if spec.task in entry.tasks}
    return {
        "name": entry.name,
        "label": entry.label,
        "description": entry.description,
        "tasks": list(entry.tasks),
        "num_parameters": {name: _count_parameters(entry, spec) for name, spec in fitting.items()},
    }


def _count_parameters(entry: registry.ModelEntry, spec: DataSpec) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in entry.build(spec).parameters())


def _describe_dataset(name: str, spec: DataSpec) -> dict[str, Any]:
    return {
        "name": name,
        "label": registry.datasets()[name].label,
        "description": spec.description,
        "source": spec.source,
        "task": spec.task,
        "num_train": spec.num_train,
        "num_validation": spec.num_validation,
        "num_classes": spec.num_classes,
        "sample_unit": spec.sample_unit,
    }


if __name__ == "__main__":
    json.dump(describe(), sys.stdout, indent=1)
