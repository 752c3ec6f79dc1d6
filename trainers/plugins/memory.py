"""Prints the memory that each model needs, by size and data set, as JSON.

    python -m trainers.plugins.memory

Separate from the catalogue, because it takes a few seconds for all models, and the page does not have to wait
for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from trainers import registry
from trainers.data.dataset import DataSpec
from trainers.machine.os_errors import explain
from trainers.parallel.sharded import layers_of
from trainers.plugins import catalog
from trainers.plugins.activations import activation_bytes_per_sample
from trainers.registry import ModelEntry

BYTES_PER_NUMBER = 4  # fp32


def describe() -> dict[str, Any]:
    """Return the memory needs of every model, by model, size and data set, as JSON values."""
    registry.discover_all()  # the catalogue reports broken plug-ins
    specs, _, _ = catalog.read_specs([])
    models, errors = {}, []
    for entry in registry.models().values():
        if entry.needs_path or entry.requires:
            continue
        try:
            models[entry.name] = _needs_for_all(entry, specs)
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; it is reported
            errors.append(
                {
                    "module": f"model {entry.name}",
                    "message": f"{type(error).__name__}: {explain(error)}",
                }
            )
    return {"models": models, "errors": errors}


def _needs_for_all(
    entry: ModelEntry, specs: Mapping[str, DataSpec]
) -> dict[str, dict[str, dict[str, int | None]]]:
    fitting = {name: spec for name, spec in specs.items() if spec.task in entry.tasks}

    def of_sizes(spec: DataSpec) -> dict[str, dict[str, int | None]]:
        return {size: needs_of(catalog.on_meta(entry, spec, size), spec) for size in entry.sizes}

    by_dataset = catalog.once_per_shape(fitting, of_sizes)
    return {size: {name: needs[size] for name, needs in by_dataset.items()} for size in entry.sizes}


def needs_of(network: nn.Module, spec: DataSpec) -> dict[str, int | None]:
    """Return the memory needs of a network on the meta device for a data set."""
    return {
        "activation_bytes_per_sample": activation_bytes_per_sample(network, spec),
        "largest_layer_bytes": _largest_layer_bytes(network),
    }


def _largest_layer_bytes(network: nn.Module) -> int:
    """Return the most bytes of weights that FSDP gathers at a time: one layer, or all outside of layers."""
    layers = layers_of(network)
    in_layers = {parameter for layer in layers for parameter in layer.parameters()}
    parts = [list(layer.parameters()) for layer in layers]
    parts.append([parameter for parameter in network.parameters() if parameter not in in_layers])
    return max(BYTES_PER_NUMBER * sum(parameter.numel() for parameter in part) for part in parts)


if __name__ == "__main__":
    json.dump(describe(), sys.stdout, indent=1)
