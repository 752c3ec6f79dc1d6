"""Prints torch's report about this machine as one line of JSON, in a separate process.

    python -m trainers.check_machine.checks.probe

Initialises CUDA, so only idle GPUs may be visible to this process.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from trainers import registry
from trainers.data.dataset import DataOptions
from trainers.parallel import usable_gpus
from trainers.plugins import catalog

# Small networks; each strategy uses the first one that it can train.
CANDIDATES = (("digits", "vit"), ("austen", "gpt"))


def describe() -> dict[str, Any]:
    """Return torch's version, the GPUs that it can use or why none, and the network for each strategy."""
    gpus = {name: value for name, value in usable_gpus.describe().items() if name != "watched_paths"}
    return {"torch": torch.__version__, "cuda": torch.version.cuda, **gpus, "strategies": _strategies()}


def _strategies() -> list[dict[str, Any]]:
    for package in ("trainers.models", "trainers.datasets", "trainers.strategies"):
        registry.discover(package)
    networks = [(dataset, model, _network(dataset, model)) for dataset, model in CANDIDATES]
    strategies = []
    for strategy in catalog.ordered_strategies():
        trainable = [
            (dataset, model) for dataset, model, network in networks if strategy.why_not(network) is None
        ]
        strategies.append(
            {
                "name": strategy.name,
                "label": strategy.label,
                "ranks_per_replica": strategy.ranks_per_replica,
                "trains": trainable[0] if trainable else None,
            }
        )
    return strategies


def _network(dataset: str, model: str) -> torch.nn.Module:
    entry = registry.models()[model]
    spec = registry.datasets()[dataset].create(DataOptions()).spec()
    return catalog.on_meta(entry, spec, entry.default_size)


if __name__ == "__main__":
    # On a separate line, because other code may also print.
    print(f"\n{json.dumps(describe())}", flush=True)
